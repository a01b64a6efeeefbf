"""Negative phrases that a language model generates: each phrase of a text with another continuation."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from transformers import GenerationConfig

from hf_targets.phrases.batches.entries import Phrase, PhraseWindow, checked_num_successors
from hf_targets.phrases.batches.interleaving import PhrasedText
from hf_targets.phrases.batches.retokenization import Retokenizer


class LanguageModel(Protocol):
    """The part of a causal language model that `Generation` uses; all models of Transformers have it."""

    training: bool

    @property
    def device(self) -> torch.device:
        """The device of the model's input."""
        ...

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Return `input_ids` followed by the generated ids."""
        ...


class Generation:
    """Each phrase followed by the first 1 to `num_successors` tokens that a language model generates after it.

    The prompt is only the phrase, and the model always generates `num_successors` tokens. The continuations of a phrase
    are cached in this object, so that each is generated once; the cache of a dataloader worker is lost when the worker
    ends. With a model on an accelerator set `dataloader_num_workers=0`, since a forked worker cannot use it.

    A model with another tokenizer reads the text of the phrase and generates `num_successors` of its own tokens. Their
    text is converted to the collator's ids, and the first `num_successors` of these follow the phrase. A phrase without
    a complete character has no continuation.

    Args:
        model: A causal language model in evaluation mode.
        retokenizer: Converts the collator's static ids to the model's; None: both have the same ids.
        num_continuations: The number of continuations of each phrase; more than one needs sampling.
        sampling_seed: Seed of sampling from the model's full distribution; None: greedy decoding.
        batch_size: Phrases in a forward pass; all of them have the same length, so that none is padded.
        max_cached: The largest number of phrases in the cache, about 16 MiB by default; the oldest are dropped first.
    Raises:
        ValueError: If a count is below 1, several continuations are wanted without sampling, or the model is in
            training mode.
    Source: Liu et al. 2024, section 2.4, with GPT-2 for GPT-2 and TinyLlama alike.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        retokenizer: Retokenizer | None = None,
        num_successors: int = 2,
        num_continuations: int = 1,
        sampling_seed: int | None = None,
        batch_size: int = 256,
        max_cached: int = 65_536,
    ) -> None:
        self.num_successors = checked_num_successors(num_successors)
        if min(num_continuations, batch_size, max_cached) < 1 or (num_continuations > 1 and sampling_seed is None):
            raise ValueError(
                "num_continuations, batch_size and max_cached must be at least 1, and more than one continuation needs "
                f"a sampling_seed, got {num_continuations}, {batch_size}, {max_cached} and {sampling_seed}"
            )
        if model.training:
            raise ValueError(
                "the model that generates negatives must be in evaluation mode, got one in training mode; call eval() "
                "on it"
            )
        self.model = model
        self.retokenizer = retokenizer
        self.num_continuations = num_continuations
        self.batch_size = batch_size
        self.max_cached = max_cached
        self._seed = sampling_seed
        self._cache: dict[Phrase, tuple[Phrase, ...]] = {}

    def windows(self, texts: Sequence[PhrasedText]) -> list[PhraseWindow]:
        """Return each phrase with its continuations."""
        wanted = dict.fromkeys(phrase for text in texts for phrase in text.phrases)
        known = {phrase: self._cache[phrase] for phrase in wanted if phrase in self._cache}
        new = [phrase for phrase in wanted if phrase not in known]
        prompts = new if self.retokenizer is None else self.retokenizer(new)
        by_length: dict[int, list[tuple[Phrase, Sequence[int]]]] = {}
        for phrase, prompt in zip(new, prompts, strict=True):
            by_length.setdefault(len(prompt), []).append((phrase, prompt))
        known |= dict.fromkeys((phrase for phrase, _ in by_length.pop(0, [])), ())  # their prompts are empty
        for pairs in by_length.values():
            for first in range(0, len(pairs), self.batch_size):
                phrases, group = zip(*pairs[first : first + self.batch_size], strict=True)
                known |= zip(phrases, self._continued(phrases, group), strict=True)
        self._cache |= known
        for phrase in list(self._cache)[: max(len(self._cache) - self.max_cached, 0)]:
            del self._cache[phrase]
        return [
            PhraseWindow(continuation, len(phrase) + 1, row)
            for row, text in enumerate(texts)
            for phrase in text.phrases
            for continuation in known[phrase]
        ]

    @torch.no_grad()
    def _continued(self, phrases: Sequence[Phrase], rows: Sequence[Sequence[int]]) -> list[tuple[Phrase, ...]]:
        """Return the continuations of each phrase; `rows` are the prompts, all of the same length."""
        prompts = torch.tensor(rows, device=self.model.device)
        sampling: dict[str, Any] = {} if self._seed is None else {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
        config = GenerationConfig(
            do_sample=self._seed is not None,
            num_return_sequences=self.num_continuations,
            max_new_tokens=self.num_successors,
            min_new_tokens=self.num_successors,  # so that all rows end at the same step, without padding
            pad_token_id=0,
            **sampling,
        )
        with torch.random.fork_rng(list(range(torch.cuda.device_count())), enabled=self._seed is not None):
            if self._seed is not None:
                torch.manual_seed(self._seed)
                self._seed += 1
            output = self.model.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=config)
        successors = output[:, prompts.shape[1] :].tolist()
        if self.retokenizer is not None:
            successors = [ids[: self.num_successors] for ids in self.retokenizer.inverse()(successors)]
        count = self.num_continuations
        return [
            tuple(dict.fromkeys((*phrase, *ids) for ids in successors[index * count : (index + 1) * count] if ids))
            for index, phrase in enumerate(phrases)
        ]
