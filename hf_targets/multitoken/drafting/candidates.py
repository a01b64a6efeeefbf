"""The heads as a candidate generator for Transformers' assisted decoding: one row, and chains only."""

from typing import Any

import torch
from torch import Tensor
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.logits_process import LogitsProcessorList
from transformers.utils.generic import ModelOutput

from hf_targets.multitoken.drafting.chains import ChainDrafter
from hf_targets.multitoken.drafting.output import DraftCounts


class HeadCandidates(CandidateGenerator):
    """Drafts tokens from the hidden state that predicted the last token, and counts drafts and forward passes.

    The heads belong to the model that verifies the drafts.

    Args:
        num_tokens: Most tokens that the heads draft; prompt lookup may add more.
        max_length: Most tokens of the whole text.
        max_positions: Most tokens that the model can read; None: no limit.
        source: What the encoder of an encoder-decoder model has read, (1, time), which prompt lookup searches too.
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
        source: Tensor | None = None,
    ) -> None:
        self._source = source
        self._drafter = drafter
        self._processors = processors
        self._num_tokens = num_tokens
        # the verifying pass reads all drafted tokens, and adds one more token that it does not read
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
        """Return the text and a draft after it, (1, time), and the logits that the draft was sampled from.

        Returns: The logits are (1, draft, vocab), or None if the draft was not sampled.
        """
        count = min(self._num_tokens, self._longest - input_ids.shape[1])
        if is_first_iteration or model_outputs is None or count < 1:
            self._last_count = 0
            return input_ids, None
        hidden: Tensor = model_outputs["last_hidden_state"]
        hidden = hidden[:, hidden.shape[1] - 1 - self._last_count + n_last_matches]

        def process(tokens: Tensor, logits: Tensor) -> Tensor:
            return self._processors(torch.cat([input_ids, tokens], dim=1), logits)  # pyright: ignore

        text = input_ids if self._source is None else torch.cat([self._source, input_ids], dim=1)
        draft = self._drafter.draft(hidden, input_ids[:, -1], count, process, [text])
        candidates = torch.cat([input_ids, draft.tokens], dim=1)[:, : self._longest]
        self._last_count = candidates.shape[1] - input_ids.shape[1]
        self.counts.drafted += self._last_count
        return candidates, None if draft.logits is None else draft.logits[:, : self._last_count]

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        """Count the last forward pass and the drafted tokens that it accepted."""
        self.counts.verifications += min(self.counts.forward_passes, 1)  # the first pass only reads the prompt
        self.counts.forward_passes += 1
        self.counts.accepted += int(num_matches)
