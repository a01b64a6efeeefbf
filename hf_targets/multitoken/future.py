"""The predictions of a call's heads, a mask of those that exist, and their losses."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache, DynamicCache

from hf_targets.backbones.alignment import steps_into_sequence
from hf_targets.backbones.call import Call
from hf_targets.backbones.output_matrix import OutputMap
from hf_targets.backbones.weight_access import weighted_output_cross_entropy
from hf_targets.maths.ensemble import mix_predictions
from hf_targets.maths.losses import IGNORED, weighted_cross_entropy
from hf_targets.multitoken.draft_vocabulary import DraftVocabulary
from hf_targets.multitoken.heads import FutureHeads
from hf_targets.multitoken.hidden_state_cache import HiddenStateCache
from hf_targets.multitoken.mtp import Reading


@dataclass(frozen=True)
class Known:
    """What the heads read. With a cache it begins with up to N - 1 earlier positions, which predict the new targets.

    Attributes:
        hidden, tokens, steps: (batch, past + time, d) and (batch, past + time); steps into their sequence.
        past: Number of the earlier positions.
        reading: What `MtpHeads` also read; None for other heads.
    """

    hidden: Tensor
    tokens: Tensor
    steps: Tensor
    past: int = 0
    reading: Reading | None = None

    @classmethod
    def of(cls, call: Call, hidden: Tensor, cache: Cache | None, window: int | None) -> "Known":
        """Return what is known of a call with its last hidden states (batch, time, d), which a cache keeps.

        Args:
            cache: Of the text; None: nothing is kept.
            window: How many earlier positions; None: all.
        """
        batch, time, _ = hidden.shape
        tokens = torch.zeros_like(hidden[..., 0], dtype=torch.long) if call.tokens is None else call.tokens
        layer = None
        if isinstance(cache, DynamicCache):
            layer = HiddenStateCache.find(cache)
            if layer is None:
                layer = HiddenStateCache()
                cache.layers.append(layer)
        before = None if layer is None else layer.last_steps()
        steps = steps_into_sequence(batch, time, call.attention_mask, call.position_ids, hidden.device, before=before)
        if layer is not None:
            window = layer.get_seq_length() if window is None else window
            hidden, tokens, steps = layer.extend(hidden, tokens, steps, window=window)
        return cls(hidden, tokens, steps, hidden.shape[1] - time)


@dataclass(frozen=True)
class Scoring:
    """How predictions are scored.

    Heads that draft from a part of the vocabulary, by the shared matrix, are scored on that part: a target outside of
    it is none.

    Attributes:
        targets: (batch, time), the target of each position.
        weights: Of the loss of the next token, which is not computed if it is 0, then of the heads' losses.
        label_smoothing: The share of the uniform distribution in the targets.
        cap: Of the logits, as `soft_capped` bounds them; None: none.
    """

    targets: Tensor
    weights: list[float]
    label_smoothing: float
    cap: float | None = None

    def losses(
        self,
        matrix: Tensor,
        bias: Tensor | None,
        states: list[Tensor],
        labels: list[Tensor],
        layers: list[nn.Linear],
        drafted: DraftVocabulary | None,
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Return the weighted sum of all losses, and the sum of each, without a gradient; None if not computed.

        Args:
            states: What the output matrix reads for the next token, then for each head, (batch * time, d).
            labels: Their targets, (batch, time).
            layers: The heads' own output layers; empty if they share the matrix.
            drafted: The part of the vocabulary that heads draft from; None: all of it.
        """
        labels, how = [part.flatten() for part in labels], {"label_smoothing": self.label_smoothing, "cap": self.cap}
        first = 0 if self.weights[0] else 1
        if first:  # of stored states there may be many without a target, such as prompts
            kept = [(part != IGNORED).nonzero()[:, 0] for part in labels]
            states = [part[rows] for part, rows in zip(states, kept, strict=True)]
            labels = [part[rows] for part, rows in zip(labels, kept, strict=True)]
        exact = {"dtype": torch.promote_types(states[0].dtype, torch.float32), "device": labels[0].device}
        factors = [torch.full((len(part),), w, **exact) for part, w in zip(labels, self.weights, strict=True)]

        def score(rows: slice, matrix: Tensor, bias: Tensor | None, labels: list[Tensor]) -> tuple[Tensor, list]:
            joined = torch.cat(states[rows]), matrix, torch.cat(labels), torch.cat(factors[rows]), bias
            total, losses = weighted_cross_entropy(*joined, **how)
            return total, [part.sum() for part in losses.split([len(part) for part in labels])]

        if not layers and drafted is None:  # one call for all rows holds one gradient of the matrix, not one a head
            total, sums = score(slice(first, None), matrix, bias, labels[first:])
            return total, [None] * first + sums
        results = [] if first else [score(slice(1), matrix, bias, labels[:1])]
        if layers:
            for layer, *of_head in zip(layers, states[1:], labels[1:], factors[1:], strict=True):
                total, losses = weighted_output_cross_entropy(layer, *of_head, **how)
                results.append((total, [losses.sum()]))
        elif drafted is not None:
            ids, places = drafted.ids.to(matrix.device), [drafted.places(part) for part in labels[1:]]
            results.append(score(slice(1, None), matrix[ids], None if bias is None else bias[ids], places))
        sums = [part for _, parts in results for part in parts]
        return torch.stack([total for total, _ in results]).sum(), [None] * first + sums


@dataclass(frozen=True)
class Future:
    """What the heads predict; entry n - 1 of the first two is head n's.

    Attributes:
        embeddings: (batch, time - n, d); the last column predicts the target of the last position. Longer, up to
            `time`, if a cache holds earlier positions.
        exists: (batch, time - n), whether a prediction comes from the sequence of its target.
        loss: The weighted sum of all losses; None if there are no targets.
        sums: Entry n is the sum of L_n of equation (5), without a gradient; None if it was not computed.
    """

    embeddings: list[Tensor] = field(default_factory=list)
    exists: list[Tensor] = field(default_factory=list)
    loss: Tensor | None = None
    sums: list[Tensor | None] = field(default_factory=list)

    def mixed(self, hidden: Tensor, weight: float | None) -> Tensor:
        """Return last hidden states (batch, time, d), mixed with these predictions as equation (13) says."""
        return mix_predictions(hidden, self.embeddings, self.exists, weight) if weight else hidden

    @torch.no_grad()
    def nlls(self, output: OutputMap, hidden: Tensor, targets: Tensor, weights: Sequence[float]) -> Tensor:
        """Return each row's summed negative log-likelihood under each ensemble weight, (batch, weights)."""
        return torch.stack([output.cross_entropy(self.mixed(hidden, w), targets).sum(dim=1) for w in weights], dim=1)


def predict(heads: FutureHeads, output: OutputMap, known: Known, scoring: Scoring | None) -> Future:
    """Return what the heads predict of what is known, and their losses if they are to be scored."""

    def inside(
        matrix: Tensor, bias: Tensor | None, hidden: Tensor, tokens: Tensor, steps: Tensor, targets: Tensor | None
    ) -> tuple:
        rows = F.embedding(tokens[:, 1:], matrix.detach()) if heads.differences else None
        past, steps = known.past, steps[:, known.past :]
        time = steps.shape[1]
        future = heads(hidden, rows, past, **({} if known.reading is None else {"reading": known.reading}))
        exists = [steps[:, time - predicted.shape[1] :] >= n for n, predicted in enumerate(future, start=1)]
        if scoring is None or targets is None:
            return future, exists, None, []
        kept = [targets[:, n:].masked_fill(~present, IGNORED) for n, present in enumerate(exists, start=1)]
        states = [output.scaled(predicted).flatten(0, 1) for predicted in (hidden[:, past:], *future)]
        layers = [] if heads.outputs is None else [heads.output(n, output).layer for n in range(1, len(states))]
        return future, exists, *scoring.losses(matrix, bias, states, [targets, *kept], layers, heads.draft_vocabulary)

    # a single call with a gradient: with several, FSDP may lose the gradient of a tied matrix
    targets = None if scoring is None else scoring.targets
    return Future(*output.inside(inside, known.hidden, known.tokens, known.steps, targets))
