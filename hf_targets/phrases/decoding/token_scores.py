"""Phrases without training: a model that reads their tokens scores them."""

from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.generation.logits_process import LogitsProcessor

from hf_targets.backbones.weight_access import execution_device
from hf_targets.phrases.decoding.matching import PhraseLookup
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary


class ScoredByTokens(LogitsProcessor):
    """Scores tokens and phrases by a causal model that reads only tokens, in place of a model trained with phrases.

    For `generate(phrases=..., logits_processor=[...])`. The score of a token is its log-probability after the text with
    all phrases expanded, that of a phrase (w_1 ... w_s) the sum over i of log p(w_i | text, w_1 ... w_i-1), plus
    `correction` for each token after the first. With a correction c > 0 a phrase is preferred to its first token alone
    if the geometric mean of the p of the others is above e^-c: where the model would write them anyway. So the text is
    about that of plain decoding, with phrases whose sources are known. Each step takes one more pass, and one for each
    phrase that begins with the best token and begins no longer phrase; only phrases that begin with the best token may
    be written. It replaces the scores that it gets, but for those of -inf: a repetition penalty has no effect.

    Args:
        model: Without phrases, such as the `backbone` of the model that writes. Padding is read as text.
        vocabulary: The phrases of the text.
        correction: c. At 0.7 the mean must be above one half.
    Raises:
        ValueError: When it is called with several rows, as with beams.
    Source: Liu et al., "Generation with Dynamic Vocabulary", equation (1).  Departs: a phrase is scored by its tokens
        and not by an embedding, so that nothing has to be trained.
    """

    def __init__(self, model: PreTrainedModel, vocabulary: PhraseVocabulary, *, correction: float = 0.7) -> None:
        self.model, self.vocabulary, self.correction = model, vocabulary, correction
        self._cache, self._read = DynamicCache(), []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores (1, V + P) after a text (1, time) of tokens."""
        if len(input_ids) != 1:
            raise ValueError(f"phrases are scored by their tokens in one text at a time, got {len(input_ids)} rows")
        size, text = self.vocabulary.vocab_size, input_ids[0].tolist()
        own = torch.full_like(scores, -torch.inf)
        own[0, :size] = self._log_probabilities(text, 1)[0]
        first = int(own.argmax())
        slots = PhraseLookup.of(self.vocabulary).beginning_with([first])
        # Phrases that were added since the scores were made have no column in them.
        phrases = [(self.vocabulary.expand([size + slot]), slot) for slot in slots if size + slot < scores.shape[1]]
        longest, gains = [], torch.zeros(0)
        for tokens, slot in sorted(phrases, reverse=True):  # each is followed by those that it begins with
            if longest[: len(tokens)] != tokens:
                log_p = self._log_probabilities([*text, *tokens[:-1]], len(tokens) - 1)
                longest, gains = tokens, log_p[torch.arange(len(tokens) - 1), tokens[1:]] + self.correction
            own[0, size + slot] = own[0, first] + gains[: len(tokens) - 1].sum()
        return own.masked_fill(scores.isneginf(), -torch.inf)

    def _log_probabilities(self, text: list[int], count: int) -> Tensor:
        """Return log p of the tokens after each of the last `count` positions of a text, which stays in the cache."""
        same = (one == two for one, two in zip(self._read, text[:-count], strict=False))
        known = sum(takewhile(bool, same))
        if known < len(self._read):
            self._cache.crop(known - len(self._read))
        self._read = text
        new = torch.tensor([text[known:]], device=execution_device(self.model))
        given: Any = {"past_key_values": self._cache, "use_cache": True, "logits_to_keep": count}
        return self.model(input_ids=new, **given).logits[0].float().log_softmax(dim=-1)
