"""Negative phrases that a language model generates: each phrase of a text with another continuation."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from hf_targets.phrases.batches.entries import Phrase, PhrasedText, PhraseWindow
from hf_targets.phrases.vocabulary.tokenization import text_mid_text, tokenize_mid_text

_PART_OF_A_CHARACTER = "\ufffd"
_MAX_KNOWN = 2**16  # phrases with which the cache is emptied


class Generation:
    """Each phrase followed by the first 1 to `num_successors` tokens that a language model generates after it.

    The prompt is only the phrase. The continuations of a phrase are cached in this object, so that each is generated
    once. With a model on an accelerator set `dataloader_num_workers=0`, since a forked worker cannot use it.

    A model with another tokenizer reads the text of the phrase, and the text of `num_successors` of its own tokens is
    converted to the collator's ids. A phrase without a complete character has no continuation.

    Args:
        model: A causal language model in evaluation mode.
        tokenizers: That of the collator's static ids, and the model's own; None: both are one.
        batch_size: Phrases in a forward pass; all of them have the same length, so that none is padded.
    Raises:
        ValueError: If the model is in training mode.
    Source: Liu et al. 2024, section 2.4, with GPT-2 for GPT-2 and TinyLlama alike.
    """

    def __init__(
        self,
        model: Any,
        *,
        tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase] | None = None,
        num_successors: int = 2,
        batch_size: int = 256,
    ) -> None:
        if model.training:
            raise ValueError("the model that generates negatives must be in evaluation mode; call eval() on it")
        is_same = tokenizers is None or tokenizers[0].get_vocab() == tokenizers[1].get_vocab()
        self.model, self.tokenizers, self.num_successors = model, None if is_same else tokenizers, num_successors
        self.batch_size = batch_size
        self._known: dict[Phrase, Phrase | None] = {}

    def windows(self, texts: Sequence[PhrasedText]) -> list[PhraseWindow]:
        """Return each phrase with its continuations."""
        if len(self._known) >= _MAX_KNOWN:
            self._known = {}
        wanted = dict.fromkeys(phrase for text in texts for phrase in text.phrases)
        new = [phrase for phrase in wanted if phrase not in self._known]
        prompts = new if self.tokenizers is None else _converted(new, *self.tokenizers)
        by_length: dict[int, list[tuple[Phrase, Sequence[int]]]] = {}
        for phrase, prompt in zip(new, prompts, strict=True):
            by_length.setdefault(len(prompt), []).append((phrase, prompt))
        self._known |= dict.fromkeys(phrase for phrase, _ in by_length.pop(0, []))  # their prompts are empty
        for pairs in by_length.values():
            for first in range(0, len(pairs), self.batch_size):
                phrases, group = zip(*pairs[first : first + self.batch_size], strict=True)
                self._known |= zip(phrases, self._continued(phrases, group), strict=True)
        return [
            PhraseWindow(continuation, len(phrase) + 1, row)
            for row, text in enumerate(texts)
            for phrase in text.phrases
            if (continuation := self._known[phrase]) is not None
        ]

    @torch.no_grad()
    def _continued(self, phrases: Sequence[Phrase], rows: Sequence[Sequence[int]]) -> list[Phrase | None]:
        """Return each phrase with its continuation; `rows` are the prompts, all of the same length."""
        prompts = torch.tensor(rows, device=self.model.device)
        count = self.num_successors  # in all rows, so that none is padded
        config = GenerationConfig(do_sample=False, max_new_tokens=count, min_new_tokens=count, pad_token_id=0)
        output = self.model.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=config)
        successors = output[:, prompts.shape[1] :].tolist()
        if self.tokenizers is not None:
            successors = [ids[:count] for ids in _converted(successors, *reversed(self.tokenizers))]
        return [(*phrase, *ids) if ids else None for phrase, ids in zip(phrases, successors, strict=True)]


def _converted(
    rows: Sequence[Sequence[int]], source: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase
) -> list[list[int]]:
    """Return the target's ids for the text of each row of the source's, up to the first incomplete character."""
    texts = [text_mid_text(row, source).split(_PART_OF_A_CHARACTER)[0] for row in rows]
    return tokenize_mid_text(texts, target)
