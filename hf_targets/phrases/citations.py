"""Answers that cite documents by their phrases, each of which knows the document that it comes from."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from hf_targets.data.words import check_texts
from hf_targets.phrases.mining.miner import MarkablePhrases, PhraseMiner, is_in_a_word
from hf_targets.phrases.vocabulary.tokenization import text_mid_text, tokenize_mid_text
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

    A phrase that stands in two documents is two phrases. The name of a document in the sources is its number. Phrases
    with the end of a sentence or of half a word before their marker are left out (`MarkablePhrases`); windows and
    constituents inside of them remain.

    Args:
        documents: Texts, in the order of their numbers in the prompt; the first is 1.
        vocab_size: As for `PhraseVocabulary`.
    Raises:
        ValueError: If there is no document, one has no text, or the tokenizer is not a fast one or cannot write a
            marker.
    Source: Liu et al., "Generation with Dynamic Vocabulary", section 3.5.  Departs: phrases with the end of a
        sentence inside, or that end inside a word, are left out; the paper does not speak of them.
    """
    named = numbered_documents(documents)
    markers = {name: marker_of(int(name)) for name in named}
    for marker, ids in zip(markers.values(), tokenize_mid_text(list(markers.values()), tokenizer), strict=True):
        if (written := text_mid_text(ids, tokenizer)) != marker:
            raise ValueError(
                f"a phrase must be able to end with its document's marker, and this {type(tokenizer).__name__} writes "
                f"{marker!r} as {written!r}; take phrases without markers, and mark the text with mark_sources"
            )
    mined = MarkablePhrases(miner)
    return PhraseVocabulary.from_documents(named, tokenizer, mined, vocab_size=vocab_size, markers=markers)


def numbered_documents(documents: Sequence[str]) -> dict[str, str]:
    """Return the documents of a prompt by their numbers, "1" first.

    Raises:
        ValueError: If they are no list of texts, there is none, or one has no text or half a letter.
    """
    check_texts(documents, "documents")
    if not documents or not all(map(str.strip, documents)):
        raise ValueError(f"citations need documents, each with text, got {documents!r:.60}; leave out empty ones")
    return {str(number): text for number, text in enumerate(documents, start=1)}


def mark_sources(
    text: str, spans: Sequence[PhraseSpan], numbers: Mapping[str, int]
) -> tuple[str, tuple[PhraseSpan, ...]]:
    """Return a text with a marker after each phrase, of the document that it comes from, and where phrases then are.

    So phrases without markers cite too, and no model of inference is needed to know which document a phrase was in.
    Where a phrase follows another of the same document directly, one marker stands after both. A phrase whose last word
    goes on in the text, as "bank" in "banker", is left out: the document does not have that word.

    Args:
        text: Generated.
        spans: Its phrases, from `PhraseVocabulary.spans`.
        numbers: Of documents, by name; phrases of other documents, and those without a source, get no marker.
    Returns: The marked text, and the phrases by its characters, without their markers.

    >>> from hf_targets.phrases.vocabulary.sources import PhraseSource
    >>> spans = [PhraseSpan(2, 10, 9, " the mat", (PhraseSource("cats", 11, 18),))]
    >>> mark_sources("on the mat.", spans, {"cats": 1})[0]
    'on the mat[1].'
    """
    spans = [span for span in spans if not is_in_a_word(text, span.end)]
    parts, moved, written, shift = [], [], 0, 0
    for index, span in enumerate(spans):
        number = _number(span, numbers)
        following = spans[index + 1] if index + 1 < len(spans) else None
        goes_on = following is not None and following.start == span.end and _number(following, numbers) == number
        moved.append(replace(span, start=span.start + shift, end=span.end + shift))
        if number is None or goes_on:
            continue
        parts += [text[written : span.end], marker_of(number)]
        written, shift = span.end, shift + len(parts[-1])
    return "".join([*parts, text[written:]]), tuple(moved)


def _number(span: PhraseSpan, numbers: Mapping[str, int]) -> int | None:
    """Return the number of the first of a phrase's documents that has one."""
    return next((numbers[source.document] for source in span.sources if source.document in numbers), None)
