"""Answers that cite documents by their phrases, each of which knows the document that it comes from."""

from collections.abc import Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from hf_targets.phrases.mining.miner import PhraseMiner
from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan, PhraseVocabulary


def marker_of(number: int) -> str:
    """Return the marker of a document, counted from 1.

    >>> marker_of(2)
    '[2]'
    """
    return f"[{number}]"


def citing_phrases(
    documents: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    miner: PhraseMiner,
    *,
    vocab_size: int | None = None,
) -> PhraseVocabulary:
    """Return the phrases of numbered documents, each with its document's marker at its end: "dynamic vocabulary[1]".

    A phrase that stands in two documents is two phrases. The name of a document in the sources is its number.

    Args:
        documents: Texts, in the order of their numbers in the prompt; the first is 1.
        vocab_size: As for `PhraseVocabulary`.
    Raises:
        ValueError: If there is no document, one has no text, or the tokenizer is not a fast one.
    Source: Liu et al., "Generation with Dynamic Vocabulary", section 3.5.
    """
    if isinstance(documents, str):
        raise ValueError(f"documents must be a list of texts, got the text {documents[:40]!r}; put it in a list")
    if not documents:
        raise ValueError("citations need a document, got none; leave phrases out, or give the question documents")
    for number, text in enumerate(documents, start=1):
        if not text.strip():
            raise ValueError(f"a document must have text, and document {number} is {text!r}; leave it out")
    named = {str(number): text for number, text in enumerate(documents, start=1)}
    markers = {name: marker_of(int(name)) for name in named}
    return PhraseVocabulary.from_documents(named, tokenizer, miner, vocab_size=vocab_size, markers=markers)


def with_source_markers(text: str, spans: Sequence[PhraseSpan], numbers: Mapping[str, int]) -> str:
    """Return a text with a marker after each phrase, of the document that it comes from.

    So phrases without markers cite too, and no model of inference is needed to know which document a phrase was in.
    Where a phrase follows another of the same document directly, one marker stands after both.

    Args:
        text: Generated.
        spans: Its phrases, from `PhraseVocabulary.spans`.
        numbers: Of documents, by name; phrases of other documents, and those without a source, get no marker.

    >>> from hf_targets.phrases.vocabulary.store import PhraseSource
    >>> spans = [PhraseSpan(2, 10, 9, " the mat", (PhraseSource("cats", 11, 18),))]
    >>> with_source_markers("on the mat.", spans, {"cats": 1})
    'on the mat[1].'
    """
    parts, written = [], 0
    for index, span in enumerate(spans):
        number = _number(span, numbers)
        following = spans[index + 1] if index + 1 < len(spans) else None
        goes_on = following is not None and following.start == span.end and _number(following, numbers) == number
        if number is None or goes_on:
            continue
        parts += [text[written : span.end], marker_of(number)]
        written = span.end
    return "".join([*parts, text[written:]])


def _number(span: PhraseSpan, numbers: Mapping[str, int]) -> int | None:
    """Return the number of the first of a phrase's documents that has one."""
    return next((numbers[source.document] for source in span.sources if source.document in numbers), None)
