"""Continuation of prefixes with a phrase vocabulary for each, for `evaluation.continuations`."""

from collections.abc import Callable, Sequence
from typing import Any

from hf_targets.evaluation.continuations import Expand, Prefix, Prepare
from hf_targets.phrases.model import DynamicVocabForCausalLM
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary


def with_phrases(model: DynamicVocabForCausalLM, vocabulary_of: Callable[[Sequence[int]], PhraseVocabulary]) -> Prepare:
    """Return a function for the argument `prepare` of `continue_prefixes`, which gives each prefix a phrase vocabulary.

    Args:
        model: The model that embeds the phrases.
        vocabulary_of: Returns the phrase vocabulary of a prefix, given its token ids.
    """

    def prepare(prefixes: Sequence[Prefix], new_tokens: int) -> tuple[dict[str, Any], Sequence[Expand]]:
        vocabularies = [vocabulary_of(prefix.tokens) for prefix in prefixes]
        arguments = {"phrases": model.phrase_table(vocabularies), "max_new_static_tokens": new_tokens}
        return arguments, [lambda id_, phrases=vocabulary: phrases.expand([id_]) for vocabulary in vocabularies]

    return prepare
