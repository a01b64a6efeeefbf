"""Tiny models with a dynamic vocabulary, a tokenizer for them, and phrases, which such models often choose."""

from functools import cache

import torch

from hf_targets.data.tokenization import word_level_tokenizer
from hf_targets.phrases.model import DynamicVocabForCausalLM
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from tests.choices import restart_draws
from tests.tiny_models import VOCAB, make_backbone

WORDS = word_level_tokenizer([" ".join(["abcdef", *(f"w{number:02}" for number in range(2, VOCAB - 2))]) + "\n"])
"""Word `w07` has the id 7; 0, 48 and 49 are special, and 1 is a word that Transformers' stop strings ask for."""


def vocabulary_of(*phrases: list[int]) -> PhraseVocabulary:
    """Return the vocabulary of phrases given by their tokens."""
    return PhraseVocabulary.from_token_ids(phrases, WORDS, vocab_size=VOCAB)


def random_vocabulary(num_phrases: int = 20, seed: int = 1) -> PhraseVocabulary:
    """Return different phrases of 2 to 5 random words."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(1, VOCAB - 2, (num_phrases, 5), generator=generator).tolist()
    return vocabulary_of(*(row[: 2 + number % 4] for number, row in enumerate(words)))


@cache
def make_phrase_model(family: str = "llama", **config) -> DynamicVocabForCausalLM:
    """Return a float64 model whose phrases are scored as high as its tokens; not to be changed."""
    config = {"phrase_start": "encoder", **config}
    return DynamicVocabForCausalLM.from_base(make_backbone(family), **config).double().eval()


PHRASES, OTHERS = random_vocabulary(20), random_vocabulary(7, seed=2)
RAGGED = [PHRASES, OTHERS, vocabulary_of(), PHRASES]
"""A vocabulary for each row of `left_padded`."""


def generate(model: DynamicVocabForCausalLM, ids: torch.Tensor, **how):
    """Return what a model writes, with the same draws each time."""
    restart_draws()
    return model.generate(ids, **how)
