"""Chains of drafted tokens, made with the same processors and sampling as the text, or looked up in it."""

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
        most_probable: Whether to draft the most probable tokens even then, and no others.
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
        looks_up = config.prompt_lookup_num_tokens is not None and not most_probable
        self._lookup = PromptLookup(config, after_source=after_source) if looks_up else None
        self.reads_text = self._lookup is not None

    def draft(
        self,
        hidden: Float[Tensor, "rows dim"],
        next_tokens: Int[Tensor, "rows"],
        count: int,
        process: Callable[[Tensor, Tensor], Tensor],
        texts: Sequence[Int[Tensor, "1 _"]],
        read: Callable[[Tensor], Tensor] | None = None,
    ) -> Draft:
        """Draft `count` tokens after `next_tokens`; prompt lookup may add more.

        Args:
            hidden: The hidden states that predicted `next_tokens`.
            process: Takes the tokens drafted so far (rows, n) and the logits after them (rows, vocab), and returns the
                logits to draft from.
            texts: Each row's tokens including `next_tokens`; may be empty unless `reads_text`.
            read: As for `draft_chain`.
        """
        confidence: list[Tensor] = []

        def choose(logits: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
            if self._whole:
                logits = process(drafted, self._model.whole_logits(logits))
            if self._lookup is not None:
                # the highest probability, not the drawn token's: the draw must not decide which drafts are kept
                confidence.append(logits.softmax(dim=-1).amax(dim=-1, keepdim=True))
            if self._sampling:
                token = torch.multinomial(logits.softmax(dim=-1), num_samples=1)[:, 0]
            else:
                token = logits.argmax(dim=-1)
            return token if self._whole else self._model.drafted_ids(token), logits

        draft = draft_chain(self._model, hidden, next_tokens, count, choose, keep_logits=self._sampling, read=read)
        if self._lookup is None or not confidence:
            return draft
        return self._lookup.extend(draft, torch.cat(confidence, dim=1), texts)


class TextIndex:
    """A text with an index: where each run of a few tokens stood last, and what came after it.

    The time of a look-up does not grow with the text; the matcher of `PromptLookup` compares with all of it each time.

    Args:
        text: Its tokens so far.
        size: How many tokens must be the same.
    """

    def __init__(self, text: list[int], size: int) -> None:
        self._size, self._text = size, []
        self._after: dict[tuple[int, ...], int] = {}
        self.extend(text)

    def extend(self, tokens: list[int]) -> None:
        """Take in the next tokens of the text."""
        for token in tokens:
            self._after[tuple(self._text[-self._size :])] = len(self._text)
            self._text.append(token)

    def following(self, count: int) -> list[int]:
        """Return up to `count` tokens that came after the text's last ones where they stood before; none is empty."""
        at = self._after.get(tuple(self._text[-self._size :]))
        return [] if at is None else self._text[at : at + count]


def draft_of(found: list[list[int]], device: torch.device) -> Draft:
    """Return a draft of tokens that were found for each row, of which one has some."""
    lengths = torch.tensor([len(tokens) for tokens in found], device=device)
    longest = max(map(len, found))
    tokens = torch.tensor([[*tokens, *[0] * (longest - len(tokens))] for tokens in found], device=device)
    positions = torch.arange(longest, device=device).expand_as(tokens)
    return Draft(tokens, positions, list(range(1, longest + 1)), positions < lengths[:, None])


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
