"""What drafts ask of a model with heads: its `FuturePredictor` methods."""

# pyright: reportAttributeAccessIssue=false
# (a mixin: the model defines backbone, heads and config)

import torch
from torch import Tensor

from hf_targets.backbones.output_matrix import OutputMap
from hf_targets.backbones.weight_access import embedding_rows, num_rows


class PredictsFuture:
    """A model with `backbone`, `heads` and `config` as a `FuturePredictor`."""

    @property
    def sequential(self) -> bool:
        """Whether a head needs the tokens before its own, as heads that predict word differences do."""
        return self.config.target == "difference"

    def future_states(self, hidden: Tensor, count: int) -> Tensor:
        """Return the states that heads 1 to `count` compute from hidden states (rows, d), (rows, count, d)."""
        return self.heads.states(hidden, count)

    def future_logits(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Return head n's logits of drafted tokens from its states (rows, d) and the n tokens before, (rows, n)."""
        output, n = OutputMap.of(self.backbone, self.config.output_scale), tokens.shape[1]
        rows = embedding_rows(output.layer, tokens) if self.sequential else None
        return self.heads.draft_logits(n, output, self.heads.complete(n, states, rows))

    def parallel_logits(self, states: Tensor) -> Tensor:
        """Return all heads' logits of drafted tokens at once, (rows, count, ...), if they are not `sequential`."""
        output = OutputMap.of(self.backbone, self.config.output_scale)
        if self.heads.outputs is None:
            return self.heads.draft_logits(1, output, states)
        logits = [self.heads.draft_logits(n + 1, output, states[:, n]) for n in range(states.shape[1])]
        return torch.stack(logits, dim=1)

    def whole_logits(self, logits: Tensor) -> Tensor:
        """Return the logits of all tokens from those of the tokens that heads may draft."""
        drafted = self.heads.draft_vocabulary
        return logits if drafted is None else drafted.whole(logits, num_rows(self.get_output_embeddings()))

    def drafted_ids(self, places: Tensor) -> Tensor:
        """Return the ids of tokens from their places among the tokens that heads may draft."""
        drafted = self.heads.draft_vocabulary
        return places if drafted is None else drafted.ids.to(places.device)[places]
