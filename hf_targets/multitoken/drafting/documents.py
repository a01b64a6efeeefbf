"""Documents in which a model's text is looked up, and the characters of a text that stand in them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_targets.data.tokenization import encode
from hf_targets.multitoken.drafting.lookup import MOST, SortedTexts
from hf_targets.phrases.vocabulary.sources import PhraseSource
from hf_targets.phrases.vocabulary.store import several
from hf_targets.phrases.vocabulary.tokenization import character_ends
from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan
from hf_targets.retrieval.documents import check_documents


class DocumentTexts(SortedTexts):
    """The tokens of documents, and where each stands in its document.

    Args:
        documents: Texts by name, or only texts, which get the names "0", "1", ....
        tokenizer: A fast one.
    Raises:
        ValueError: If there is no document, or one has no text.
    """

    def __init__(self, documents: Mapping[str, str] | Iterable[str], tokenizer: PreTrainedTokenizerBase) -> None:
        if not isinstance(documents, Mapping):
            documents = {str(index): text for index, text in enumerate(several(documents, "documents"))}
        check_documents(documents)
        self._documents, self._tokenizer = documents, tokenizer
        self._names, texts = zip(*documents.items(), strict=True)
        ids, offsets = encode(list(texts), tokenizer)
        super().__init__(ids)
        self._starts = np.cumsum([MOST, *(len(one) + 1 for one in ids)])  # the place of each document's first token
        self._offsets = [np.array(one, np.int64).reshape(-1, 2) for one in offsets]

    def spans(self, ids: Sequence[int], *, min_tokens: int = 4, skip_special_tokens: bool = False) -> list[PhraseSpan]:
        """Return the characters of the text of `ids` that stand in a document, in order, each with a place there.

        Args:
            min_tokens: Fewer tokens are no span.
        """
        runs = [(*self._run(ids[:end]), end) for end in range(min_tokens, len(ids) + 1)]
        found, free = [], [True] * len(ids)
        for length, place, end in sorted(runs, reverse=True):  # the longest first
            first = next((at for at in range(end - length, end) if free[at]), end)
            if end - first >= min_tokens and all(free[first:end]):
                free[first:end] = [False] * (end - first)
                found.append((first, end, place))
        edges = sorted({edge for first, stop, _ in found for edge in (first, stop)})
        told = {"skip_special_tokens": skip_special_tokens}
        text = cast(str, self._tokenizer.decode(list(ids), **told))
        at = dict(zip(edges, character_ends(ids, edges, self._tokenizer, **told), strict=True))
        return [
            PhraseSpan(at[first], at[stop], None, text[at[first] : at[stop]], (self._source(place, stop - first),))
            for first, stop, place in sorted(found)
        ]

    def _run(self, ids: Sequence[int]) -> tuple[int, int]:
        """Return how many of the last tokens stand in a document together, however many, and the place after them."""
        length, place = self.find(ids[-MOST:])
        while 0 < length < len(ids) and self.tokens[place - length - 1] == ids[-length - 1]:
            length += 1
        return length, place

    def _source(self, place: int, length: int) -> PhraseSource:
        """Return the characters of the tokens before a place."""
        number = int(np.searchsorted(self._starts, place - 1, side="right")) - 1
        stop, name = place - int(self._starts[number]), self._names[number]
        start, end = int(self._offsets[number][stop - length, 0]), int(self._offsets[number][stop - 1, 1])
        written = self._documents[name][start:end]
        return PhraseSource(name, start + len(written) - len(written.lstrip()), end)
