"""Phrases in the grammatical sense without a parser: chunks of part-of-speech tags."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from hf_targets.extras import require
from hf_targets.phrases.mining.closed_classes import CLOSED_CLASSES
from hf_targets.phrases.mining.constituency import LABELS, constituent_spans
from hf_targets.phrases.mining.miner import MINERS, MiningTask
from hf_targets.phrases.mining.ngrams import word_tokenizer, words_of_lines
from hf_targets.phrases.mining.tokenized_text import TokenizedText

Tagger = Callable[[Sequence[str]], Sequence[tuple[str, str]]]
"""Takes the words of a sentence, and returns each with its tag of the Penn Treebank, as `nltk.pos_tag` does."""
CHUNK_GRAMMAR = r"""
NP: {<PDT>?<DT|PRP\$><CD|JJ.*|VB[DNG]>*<NN.*|CD>+(<POS><CD|JJ.*>*<NN.*>+)*}
    {<CD|JJ.*>*<NN.*|CD>+(<POS><CD|JJ.*>*<NN.*>+)*}
    {<PRP>}
PP: {<IN|TO><NP>}
NP: {<NP><PP>+}
VP: {<MD>?<RB>*<VB.*>+<RB|RP>*(<NP>|<PP>)+}
"""
"""Noun phrases, prepositional phrases, noun phrases with these, and verb phrases with what follows the verb."""
_ABBREVIATION = re.compile(r"(?:\w\.)+|(?:Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|Gen|Col|Capt|Lt|Rev|No|vs|Inc|Ltd|Co|Corp)\.")


class ChunkPhrases:
    """The noun, verb and prepositional phrases of an English text, by rules over part-of-speech tags ("chunks").

    They stand in for `ConstituencyPhrases` where no parser's model can be had. Chunks are cut, and nested ones given,
    as constituents are; none goes on after a stop.

    Args:
        tag: Gives the words of a sentence their tags: `nltk.pos_tag` where its model is installed, or None for
            `closed_class_tagger()`, which needs no download.
        labels: Labels of the chunks to keep.
        max_tokens: The longest to keep; None keeps whole clauses too.
    Source: Liu et al. 2024, section 3.5.  Departs: the paper parses; chunks find no clause and no attachment.
    """

    def __init__(
        self,
        tag: Tagger | None = None,
        *,
        labels: Collection[str] = LABELS,
        max_tokens: int | None = None,
    ) -> None:
        self.labels, self.max_tokens = frozenset(labels), max_tokens
        self._words = word_tokenizer()
        self._tag = closed_class_tagger() if tag is None else tag
        self._parser = require("nltk.chunk", extra="phrases").RegexpParser(CHUNK_GRAMMAR)

    @classmethod
    def for_task(cls, task: MiningTask) -> "ChunkPhrases":
        """Return the chunks of `closed_class_tagger`'s tags."""
        return cls(max_tokens=task.max_tokens)

    def spans(self, text: TokenizedText) -> np.ndarray:
        """Return the chunks of 2 to `max_tokens` tokens, (phrases, 2), sorted, distinct, without special ones."""
        found = []
        for words in self._sentences(text.text):
            tagged = self._tag([text.text[start:end] for start, end in words])
            for label, first, end in _chunks(self._parser.parse(list(map(tuple, tagged)))):
                if label in self.labels:
                    found.append((words[first][0], words[end - 1][1]))
        return constituent_spans(text, found, self.max_tokens)

    def _sentences(self, text: str) -> Iterator[list[tuple[int, int]]]:
        """Yield the characters [start, end) of the words of each sentence, stops left out."""
        words, lines = words_of_lines(text, self._words)
        sentence: list[tuple[int, int]] = []
        line = -1
        for (start, end), number in zip(words.tolist(), lines.tolist(), strict=True):
            word = text[start:end]
            letters = word if _ABBREVIATION.fullmatch(word) else word.rstrip(".?!;:")
            if number != line and sentence:
                yield sentence
                sentence = []
            line = number
            if letters:
                sentence.append((start, start + len(letters)))
            if letters != word and sentence:
                yield sentence
                sentence = []
        if sentence:
            yield sentence


def _chunks(tree: Any) -> Iterator[tuple[str, int, int]]:
    """Yield the label of each chunk below the root and its words [first, end)."""
    pending = [(tree, 0)]
    while pending:
        node, first = pending.pop()
        end = first
        for child in node:
            if isinstance(child, tuple):  # a word and its tag
                end += 1
                continue
            size = len(child.leaves())
            yield child.label(), end, end + size
            pending.append((child, end))
            end += size


_ENDINGS = [
    (r"^[^\w\s]+$", "."),  # punctuation, which no chunk has
    (r"^\d[\d,.:/-]*(st|nd|rd|th|s|%)?$", "CD"),
    (r"^[A-Z].*s$", "NNPS"),
    (r"^[A-Z]", "NNP"),
    (r".+ly$", "RB"),
    (r".{3,}ing$", "VBG"),
    (r".{3,}ed$", "VBD"),
    (r".+(able|ible|al|ic|ous|ful|less|ive|ish|ary)$", "JJ"),
    (r".+(ize|ise|ify)$", "VB"),
]


def closed_class_tagger() -> Tagger:
    """Return a tagger of English that knows the words of closed classes, some verbs, and endings; all else is a noun.

    It is made of NLTK's own classes and needs no download. It knows no context: "play" is always a verb, and a noun in
    "-ing" a participle. `nltk.pos_tag` is better where its model is installed.

    >>> closed_class_tagger()(["The", "cat", "sat", "on", "12", "mats"])[1:]
    [('cat', 'NN'), ('sat', 'VBD'), ('on', 'IN'), ('12', 'CD'), ('mats', 'NNS')]
    """
    taggers = require("nltk.tag", extra="phrases")
    model = {word: tag for tag, words in CLOSED_CLASSES.items() for word in words.split()}
    model |= {word.capitalize(): tag for word, tag in model.items()}
    endings = taggers.RegexpTagger([*_ENDINGS, (r".+s$", "NNS"), (r".*", "NN")])
    return taggers.UnigramTagger(model=model, backoff=endings).tag


MINERS.register("chunks", ChunkPhrases)
