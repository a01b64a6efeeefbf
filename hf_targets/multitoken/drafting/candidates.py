"""The heads as a candidate generator of Transformers' assisted decoding, for one row and chains."""

from typing import Any

import torch
from torch import Tensor
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.logits_process import LogitsProcessorList
from transformers.utils.generic import ModelOutput

from hf_targets.multitoken.drafting.chains import ChainDrafter
from hf_targets.multitoken.drafting.output import DraftCounts


class HeadCandidates(CandidateGenerator):
    """Drafts with the heads of the model that verifies, from the hidden state behind its last token, and counts.

    Args:
        num_tokens: Tokens of a draft, at most, without those that are looked up.
        max_length: Tokens of the whole text, at most.
        max_positions: Tokens that the model reads, at most; None: as many as there are.
    """

    requires_model_outputs = True
    model_kwargs_overrides = {"output_last_hidden_state": True}  # noqa: RUF012, the base class declares it

    def __init__(
        self,
        drafter: ChainDrafter,
        processors: LogitsProcessorList,
        num_tokens: int,
        *,
        max_length: int,
        max_positions: int | None,
    ) -> None:
        self._drafter = drafter
        self._processors = processors
        self._num_tokens = num_tokens
        # the pass that verifies a draft reads all of its tokens, and adds one that it does not read
        self._longest = max_length - 1 if max_positions is None else min(max_length - 1, max_positions)
        self._last_count = 0
        self.counts = DraftCounts()

    def get_candidates(
        self,
        input_ids: Tensor,
        model_kwargs: dict[str, Any] | None = None,
        model_outputs: ModelOutput | None = None,
        is_first_iteration: bool = False,
        n_last_matches: int = 0,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the text (1, time) with a draft behind it, and the logits (1, draft, vocab) it was sampled from."""
        count = min(self._num_tokens, self._longest - input_ids.shape[1])
        if is_first_iteration or model_outputs is None or count < 1:
            self._last_count = 0
            return input_ids, None
        hidden: Tensor = model_outputs["last_hidden_state"]
        hidden = hidden[:, hidden.shape[1] - 1 - self._last_count + n_last_matches]

        def process(tokens: Tensor, logits: Tensor) -> Tensor:
            return self._processors(torch.cat([input_ids, tokens], dim=1), logits)  # pyright: ignore

        draft = self._drafter.draft(hidden, input_ids[:, -1], count, process, [input_ids])
        candidates = torch.cat([input_ids, draft.tokens], dim=1)[:, : self._longest]
        self._last_count = candidates.shape[1] - input_ids.shape[1]
        self.counts.drafted += self._last_count
        return candidates, None if draft.logits is None else draft.logits[:, : self._last_count]

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        """Count what the last pass brought."""
        self.counts.verifications += min(self.counts.forward_passes, 1)  # the first pass reads the prompt
        self.counts.forward_passes += 1
        self.counts.accepted += int(num_matches)
