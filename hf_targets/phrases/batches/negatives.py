"""Where a training batch gets phrases that are not the right next one: six sources, in any combination."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from hf_targets.maths.trie import TokenTrie
from hf_targets.phrases.batches.entries import (
    MIN_PHRASE_TOKENS,
    Phrase,
    PhraseWindow,
    checked_num_successors,
)
from hf_targets.phrases.batches.generated_negatives import Generation, LanguageModel
from hf_targets.phrases.batches.interleaving import PhrasedText
from hf_targets.phrases.batches.retokenization import Retokenizer
from hf_targets.phrases.mining.tokenized_text import TokenizedText


class NegativeStrategy(Protocol):
    """A source of negative phrases."""

    def windows(self, texts: Sequence[PhrasedText]) -> Iterable[PhraseWindow]:
        """Return the negatives of a batch's phrases; called once a batch. A window is cut at special tokens later."""
        ...


class InBatch:
    """In-batch negatives: the table of a row has the phrases and negatives of every row, not its own alone."""

    def windows(self, texts: Sequence[PhrasedText]) -> Iterable[PhraseWindow]:
        """Return nothing: the phrases are in the batch already, and the collator lets every row see them."""
        return ()


class Prefixes:
    """The proper prefixes, of two tokens and more, of each phrase."""

    def windows(self, texts: Sequence[PhrasedText]) -> Iterator[PhraseWindow]:
        """Yield each phrase less its last token."""
        for row, text in enumerate(texts):
            for phrase in text.phrases:
                yield PhraseWindow(phrase[:-1], MIN_PHRASE_TOKENS, row)


class PreBatch:
    """The phrases of the batches before, in the table of every row.

    Under `DynamicVocabTrainer` they are the batches before in the same epoch and process. Elsewhere they are kept here
    from call to call: a copy of this in each of several dataloader workers sees only the batches that its worker made,
    so that the batch before is then that of `num_workers` batches ago, and a new set of workers begins with none.

    Args:
        num_batches: How many batches are kept.
        prefixes: Whether the prefixes of those phrases are negatives too.
    Raises:
        ValueError: If `num_batches` is below 1.
    Source: Liu et al. 2024, table 5: one batch, with prefixes.
    """

    def __init__(self, num_batches: int = 1, *, prefixes: bool = True) -> None:
        if num_batches < 1:
            raise ValueError(f"num_batches must be at least 1, got {num_batches}; leave PreBatch out for none")
        self.num_batches = num_batches
        self.prefixes = prefixes
        self._batches: deque[list[Phrase]] = deque(maxlen=num_batches)

    def without_batches(self) -> "PreBatch":
        """Return one like this that has kept no batch yet."""
        return PreBatch(self.num_batches, prefixes=self.prefixes)

    def recall(self, batches: Iterable[Sequence[PhrasedText]]) -> None:
        """Keep the phrases of these batches, the oldest first, and no others."""
        self._batches.clear()
        self._batches.extend([phrase for text in texts for phrase in text.phrases] for texts in batches)

    def windows(self, texts: Sequence[PhrasedText]) -> list[PhraseWindow]:
        """Return the phrases kept so far, and keep those of `texts` for the next call."""
        windows = [
            PhraseWindow(phrase, MIN_PHRASE_TOKENS if self.prefixes else len(phrase), None)
            for batch in self._batches
            for phrase in batch
        ]
        self._batches.append([phrase for text in texts for phrase in text.phrases])
        return windows


class SelfRetrieval:
    """Each phrase with the 1 to `num_successors` tokens that follow it, wherever it appears in its own text.

    Raises:
        ValueError: If `num_successors` is below 1.
    Source: Liu et al. 2024, section 2.4, where two successors are the example.
    """

    def __init__(self, num_successors: int = 2) -> None:
        self.num_successors = checked_num_successors(num_successors)

    def windows(self, texts: Sequence[PhrasedText]) -> Iterator[PhraseWindow]:
        """Yield each appearance with its successors, the one that was chosen as a phrase included."""
        for row, text in enumerate(texts):
            for start, end in TokenTrie(text.phrases).matches(text.tokens):
                yield PhraseWindow(text.tokens[start : end + self.num_successors], end - start + 1, row)


class CorpusRetrieval:
    """Each phrase with the tokens that follow it where it appears in a support corpus.

    Args:
        continuations: For each phrase, the phrase and its successors, once for each distinct sequence of them.
    Source: Liu et al. 2024, section 2.4, which has it for forward maximum matching alone.
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
        """Index where the phrases appear in the corpus, in one pass over it.

        Args:
            corpus: Texts, or their token ids; nothing follows the end of one.
            phrases: Those of a `ForwardMaximumMatching`, or any other set of token ids.
            max_continuations: How many distinct continuations of a phrase are kept, the first ones; None: all.
        Raises:
            ValueError: If a count is below 1, or a phrase has fewer than two tokens.
        """
        # Departs: the paper does not bound the appearances; a frequent phrase has many thousands of continuations,
        # every one of them a window to encode in each batch that has the phrase.
        checked_num_successors(num_successors)
        if max_continuations is not None and max_continuations < 1:
            raise ValueError(f"max_continuations must be at least 1, or None for all, got {max_continuations}")
        table = [tuple(phrase) for phrase in phrases]
        short = next((phrase for phrase in table if len(phrase) < MIN_PHRASE_TOKENS), None)
        if short is not None:
            raise ValueError(f"phrases must have at least {MIN_PHRASE_TOKENS} tokens, got {short}; leave it out")
        trie = TokenTrie(table)
        found: dict[Phrase, dict[Phrase, None]] = {}
        for text in corpus:
            tokens = tuple(map(int, text.ids if isinstance(text, TokenizedText) else text))
            for start, end in trie.matches(tokens):
                kept = found.setdefault(tokens[start:end], {})
                if (max_continuations is None or len(kept) < max_continuations) and end < len(tokens):
                    kept[tokens[start : end + num_successors]] = None
        return cls({phrase: tuple(kept) for phrase, kept in found.items()})

    def windows(self, texts: Sequence[PhrasedText]) -> Iterator[PhraseWindow]:
        """Yield the continuations of each phrase; one that is not in the index has none."""
        for row, text in enumerate(texts):
            for phrase in text.phrases:
                for continuation in self.continuations.get(phrase, ()):
                    yield PhraseWindow(continuation, len(phrase) + 1, row)


def negatives_by_name(
    names: Iterable[str],
    *,
    num_successors: int = 2,
    corpus_retrieval: CorpusRetrieval | None = None,
    language_model: LanguageModel | None = None,
    retokenizer: Retokenizer | None = None,
) -> tuple[NegativeStrategy, ...]:
    """Return the sources of negatives that a settings file names.

    Args:
        names: Of `in_batch`, `pre_batch`, `prefix`, `self_retrieval`, `corpus_retrieval` and `generation`.
        num_successors: Of self-retrieval and of generation.
        corpus_retrieval: An index of the support corpus, for that name.
        language_model: What goes on with a phrase, for `generation`.
        retokenizer: Of a language model with another tokenizer than the collator's.
    Raises:
        ValueError: If a name is unknown or given twice, lacks its index or model, or stands alone and not in a list.

    >>> [type(source).__name__ for source in negatives_by_name(["in_batch", "pre_batch"])]
    ['InBatch', 'PreBatch']
    """
    if isinstance(names, str):
        raise ValueError(f"negatives must be several names, got {names!r}; put it in a list")
    known: dict[str, Callable[[], NegativeStrategy] | str] = {  # or what it takes to make one
        "in_batch": InBatch,
        "pre_batch": PreBatch,
        "prefix": Prefixes,
        "self_retrieval": lambda: SelfRetrieval(num_successors),
        "corpus_retrieval": "a corpus_retrieval index; give CorpusRetrieval.from_corpus(...)",
        "generation": "a language_model; give a causal one",
    }
    if corpus_retrieval is not None:
        known["corpus_retrieval"] = lambda: corpus_retrieval
    if language_model is not None:
        known["generation"] = lambda: Generation(language_model, retokenizer=retokenizer, num_successors=num_successors)
    sources: dict[str, NegativeStrategy] = {}
    for name in names:
        if name not in known:
            raise ValueError(f"negatives must be of {', '.join(known)}, got {name!r}")
        if name in sources:
            raise ValueError(f"negatives name {name} twice; name it once")
        make = known[name]
        if isinstance(make, str):
            raise ValueError(f"negatives {name} take {make}")
        sources[name] = make()
    return tuple(sources.values())
