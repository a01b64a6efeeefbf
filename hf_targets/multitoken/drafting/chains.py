"""Chains of drafted tokens, made with the same processors and sampling as the text, and extended by prompt lookup."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import GenerationConfig
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from hf_targets.multitoken.drafting.drafts import Draft, draft_chain
from hf_targets.multitoken.model import MultiTokenModel


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
        model: MultiTokenModel,
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


class PromptLookup:
    """Replaces the unsure end of a chain with tokens that followed the same tokens earlier in the text.

    A head is unsure if it gives no token a probability of at least `assistant_confidence_threshold` (0.4 by default in
    Transformers). The text and the drafted tokens before the first unsure one form a sequence. If the last tokens of
    this sequence occur earlier in it, the tokens that follow there replace the rest of the draft. Without such a match
    the draft stays as it is.

    Args:
        config: `prompt_lookup_num_tokens` is the most tokens that a match adds; `max_matching_ngram_size` (default 2)
            is the most tokens that are compared.
        after_source: Whether texts begin with a source, which is not part of their length.
    Source: Transformers' prompt lookup decoding, which finds the matches.
    """

    def __init__(self, config: GenerationConfig, *, after_source: bool = False) -> None:
        self.threshold = config.assistant_confidence_threshold
        if self.threshold is None:
            self.threshold = 0.4
        self._matcher = PromptLookupCandidateGenerator(
            eos_token_id=config._eos_token_tensor,
            num_output_tokens=config.prompt_lookup_num_tokens,
            max_matching_ngram_size=config.max_matching_ngram_size or 2,
            max_length=sys.maxsize if after_source else config.max_length,
        )

    def extend(
        self, draft: Draft, confidence: Float[Tensor, "rows nodes"], texts: Sequence[Int[Tensor, "1 _"]]
    ) -> Draft:
        """Return the draft with the unsure end of each row replaced by a match, if there is one.

        Rows may then differ in length. In a sampled draft, a token from a match counts as drawn with probability 1.

        Args:
            confidence: The highest probability of each distribution that the tokens were drafted from.
            texts: Each row's tokens, including the last known one.
        """
        num_sure = (confidence >= self.threshold).cumprod(dim=1).sum(dim=1).tolist()
        rows, kept = [], []
        for row, (text, sure) in enumerate(zip(texts, num_sure, strict=True)):
            known = torch.cat([text, draft.tokens[row : row + 1, :sure]], dim=1)
            found = self._matcher.get_candidates(known)[0][0, known.shape[1] :]  # pyright: ignore[reportArgumentType]
            kept.append(sure if len(found) else draft.tokens.shape[1])
            rows.append(torch.cat([draft.tokens[row, : kept[-1]], found]))
        longest = max(len(row) for row in rows)
        tokens = torch.stack([F.pad(row, (0, longest - len(row))) for row in rows])
        positions = torch.arange(longest, device=tokens.device).expand_as(tokens)
        lengths = torch.tensor([len(row) for row in rows], device=tokens.device)
        logits = draft.logits
        if logits is not None:
            certain = torch.full((*tokens.shape, logits.shape[-1]), -torch.inf, device=tokens.device)
            certain = certain.scatter(2, tokens[..., None], 0.0)
            drawn = F.pad(logits, (0, 0, 0, max(longest - logits.shape[1], 0)))[:, :longest]
            from_heads = positions < torch.tensor(kept, device=tokens.device)[:, None]
            logits = torch.where(from_heads[..., None], drawn, certain)
        return replace(
            draft,
            tokens=tokens,
            parents=positions,
            depths=list(range(1, longest + 1)),
            exists=positions < lengths[:, None],
            logits=logits,
        )
