"""Six sources of negative phrases for a training batch, which can be combined in any way."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from hf_targets.maths.trie import TokenTrie
from hf_targets.phrases.batches.entries import MIN_PHRASE_TOKENS, Phrase, PhrasedText, PhraseWindow
from hf_targets.phrases.batches.generated_negatives import Generation
from hf_targets.phrases.mining.tokenized_text import TokenizedText


class NegativeStrategy(Protocol):
    """A source of negative phrases."""

    def windows(self, texts: Sequence[PhrasedText]) -> Iterable[PhraseWindow]:
        """Return the negatives for a batch. It is called once for each batch, and may return special tokens.

        The collator cuts each window before its first special token.
        """
        ...


class InBatch:
    """In-batch negatives: the table of each row has the phrases and negatives of all rows, not only its own."""

    def windows(self, texts: Sequence[PhrasedText]) -> Iterable[PhraseWindow]:
        """Return no windows: the batch has the phrases already, and the collator adds them to the table of each row."""
        return ()


class Prefixes:
    """The proper prefixes of each phrase that have two tokens or more."""

    def windows(self, texts: Sequence[PhrasedText]) -> Iterator[PhraseWindow]:
        """Yield each phrase without its last token."""
        for row, text in enumerate(texts):
            for phrase in text.phrases:
                yield PhraseWindow(phrase[:-1], MIN_PHRASE_TOKENS, row)


class PreBatch:
    """The phrases of earlier batches and their prefixes, in the table of each row.

    With `DynamicVocabTrainer`, the earlier batches are those of the same epoch and process. Otherwise this object keeps
    the phrases from call to call, in each dataloader worker those of its own batches.

    Args:
        num_batches: The number of earlier batches.
    Source: Liu et al. 2024, table 5: one batch, with prefixes.
    """

    def __init__(self, num_batches: int = 1) -> None:
        if num_batches < 1:
            raise ValueError(f"num_batches must be at least 1, got {num_batches}")
        self.num_batches = num_batches
        self._batches: deque[list[Phrase]] = deque(maxlen=num_batches)

    def without_batches(self) -> "PreBatch":
        """Return a copy that keeps no batch yet."""
        return PreBatch(self.num_batches)

    def recall(self, batches: Iterable[Sequence[PhrasedText]]) -> None:
        """Replace the kept phrases by those of these batches, which are given with the oldest first."""
        self._batches.clear()
        self._batches.extend([phrase for text in texts for phrase in text.phrases] for texts in batches)

    def windows(self, texts: Sequence[PhrasedText]) -> list[PhraseWindow]:
        """Return the kept phrases, and keep those of `texts` for the next call."""
        windows = [PhraseWindow(phrase, MIN_PHRASE_TOKENS, None) for batch in self._batches for phrase in batch]
        self._batches.append([phrase for text in texts for phrase in text.phrases])
        return windows


class SelfRetrieval:
    """Each phrase followed by the next 1 to `num_successors` tokens, for each of its occurrences in its own text.

    Source: Liu et al. 2024, section 2.4, whose example has two successors.
    """

    def __init__(self, num_successors: int = 2) -> None:
        if num_successors < 1:
            raise ValueError(f"num_successors must be at least 1, got {num_successors}")
        self.num_successors = num_successors

    def windows(self, texts: Sequence[PhrasedText]) -> Iterator[PhraseWindow]:
        """Yield each occurrence with its successors, also the occurrence that was chosen as a phrase."""
        for row, text in enumerate(texts):
            for start, end in TokenTrie(text.phrases).matches(text.tokens):
                yield PhraseWindow(text.tokens[start : end + self.num_successors], end - start + 1, row)


class CorpusRetrieval:
    """Each phrase followed by the next tokens, for its occurrences in a support corpus.

    Args:
        continuations: For each phrase, its distinct continuations; each is the phrase followed by its successors.
    Source: Liu et al. 2024, section 2.4, which uses it only with forward maximum matching.
    """

    def __init__(self, continuations: Mapping[Phrase, Sequence[Phrase]]) -> None:
        self.continuations = continuations

    @classmethod
    def from_corpus(
        cls,
        corpus: Iterable[TokenizedText] | Iterable[Sequence[int]],
        phrases: Iterable[Sequence[int]],
        *,
        num_successors: int = 2,
        max_continuations: int | None = 8,
    ) -> "CorpusRetrieval":
        """Collect the continuations of the phrases in one pass over a corpus.

        Args:
            corpus: Texts, or their token ids. A continuation ends at the end of its text.
            phrases: Token ids of each phrase, such as the phrases of a `ForwardMaximumMatching`.
            num_successors: The largest number of tokens after a phrase.
            max_continuations: The number of distinct continuations of a phrase; the first are kept. None: all.
        """
        # Departs: the paper does not limit the continuations. A frequent phrase has many thousands of them, and each is
        # a window to encode in every batch that has the phrase, so 8 are kept.
        if num_successors < 1 or (max_continuations is not None and max_continuations < 1):
            raise ValueError(f"counts must be at least 1, got {num_successors} and {max_continuations}")
        trie = TokenTrie([tuple(phrase) for phrase in phrases])
        found: dict[Phrase, dict[Phrase, None]] = {}
        for text in corpus:
            tokens = tuple(map(int, text.ids if isinstance(text, TokenizedText) else text))
            for start, end in trie.matches(tokens):
                kept = found.setdefault(tokens[start:end], {})
                if (max_continuations is None or len(kept) < max_continuations) and end < len(tokens):
                    kept[tokens[start : end + num_successors]] = None
        return cls({phrase: tuple(kept) for phrase, kept in found.items()})

    def windows(self, texts: Sequence[PhrasedText]) -> Iterator[PhraseWindow]:
        """Yield the continuations of each phrase; a phrase that is not in the index has none."""
        for row, text in enumerate(texts):
            for phrase in text.phrases:
                for continuation in self.continuations.get(phrase, ()):
                    yield PhraseWindow(continuation, len(phrase) + 1, row)


def negatives_by_name(
    names: Iterable[str],
    *,
    num_successors: int = 2,
    corpus_retrieval: CorpusRetrieval | None = None,
    language_model: Any = None,
    tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase] | None = None,
) -> tuple[NegativeStrategy, ...]:
    """Return the sources of negatives with the given names.

    Args:
        names: Any of `in_batch`, `pre_batch`, `prefix`, `self_retrieval`, `corpus_retrieval` and `generation`.
        num_successors: The largest number of tokens after a phrase, for `self_retrieval` and `generation`.
        corpus_retrieval: The index of a support corpus, for `corpus_retrieval`.
        language_model: The model that continues phrases, for `generation`.
        tokenizers: The collator's and the language model's, if these differ.
    Raises:
        ValueError: If a name is unknown, or the index or model of a name is missing.

    >>> [type(source).__name__ for source in negatives_by_name(["in_batch", "pre_batch"])]
    ['InBatch', 'PreBatch']
    """
    given = {"num_successors": num_successors}
    known: dict[str, Callable[[], NegativeStrategy | None]] = {
        "in_batch": InBatch,
        "pre_batch": PreBatch,
        "prefix": Prefixes,
        "self_retrieval": lambda: SelfRetrieval(**given),
        "corpus_retrieval": lambda: corpus_retrieval,
        "generation": lambda: None,
    }
    if language_model is not None:
        known["generation"] = lambda: Generation(language_model, tokenizers=tokenizers, **given)
    sources = []
    for name in names:
        if (source := known.get(name, lambda: None)()) is None:
            missing = "needs its argument of negatives_by_name" if name in known else f"is none of {', '.join(known)}"
            raise ValueError(f"negatives {name!r} {missing}")
        sources.append(source)
    return tuple(sources)
