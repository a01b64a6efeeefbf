"""Chains of drafted tokens, made with the same processors and sampling as the text, and extended by prompt lookup."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import GenerationConfig

from hf_targets.multitoken.drafting.drafts import Draft, FuturePredictor, draft_chain
from hf_targets.multitoken.drafting.lookup import PromptLookup


class ChainDrafter:
    """Drafts a chain of tokens for each row: samples if the text is sampled, else the most probable tokens.

    Args:
        model: The model whose heads draft.
        config: Says whether the text is sampled, and how many tokens prompt lookup may add.
        processed: Whether the text has processors, which need the logits of all tokens.
        most_probable: Whether to draft the most probable tokens even then.
        after_source: Whether the texts that prompt lookup searches begin with a source.
    """

    def __init__(
        self,
        model: FuturePredictor,
        config: GenerationConfig,
        *,
        processed: bool = True,
        most_probable: bool = False,
        after_source: bool = False,
    ) -> None:
        self._model = model
        self._sampling = bool(config.do_sample) and not most_probable
        self._whole = processed or self._sampling
        looks_up = config.prompt_lookup_num_tokens is not None
        self._lookup = PromptLookup(config, after_source=after_source) if looks_up else None
        self.reads_text = self._lookup is not None

    def draft(
        self,
        hidden: Float[Tensor, "rows dim"],
        next_tokens: Int[Tensor, "rows"],
        count: int,
        process: Callable[[Tensor, Tensor], Tensor],
        texts: Sequence[Int[Tensor, "1 _"]],
        least_confidences: Sequence[float] | None = None,
    ) -> Draft:
        """Draft up to `count` tokens after `next_tokens`; prompt lookup may add more.

        Args:
            hidden: The hidden states that predicted `next_tokens`.
            process: Takes the tokens drafted so far (rows, n) and the logits after them (rows, vocab), and returns the
                logits to draft from.
            texts: Each row's tokens including `next_tokens`; may be empty unless `reads_text`.
            least_confidences: The chain ends before the token at which the product of the highest probabilities, the
                mean over the rows, falls below that of this length; None: it has full length.
        """
        confidence: list[Tensor] = []
        joint: list[float] = []

        def choose(logits: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor] | None:
            if self._whole:
                logits = process(drafted, self._model.whole_logits(logits))
            if self._lookup is not None or least_confidences is not None:
                # the highest probability, not the drawn token's: the draw must not decide which drafts are kept
                highest = logits.softmax(dim=-1).amax(dim=-1, keepdim=True)
                sure = float(torch.cat([*confidence, highest], dim=1).prod(dim=1).mean())
                if least_confidences is not None and sure < least_confidences[len(confidence)]:
                    return None
                confidence.append(highest)
                joint.append(sure)
            if self._sampling:
                token = torch.multinomial(logits.softmax(dim=-1), num_samples=1)[:, 0]
            else:
                token = logits.argmax(dim=-1)
            return token if self._whole else self._model.drafted_ids(token), logits

        draft = draft_chain(self._model, hidden, next_tokens, count, choose, keep_logits=self._sampling)
        if self._lookup is None or not confidence:
            draft.confidences = joint
            return draft
        return self._lookup.extend(draft, torch.cat(confidence, dim=1), texts)
