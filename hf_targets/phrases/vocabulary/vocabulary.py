"""A vocabulary of phrases: made from texts and documents, and used to encode and decode texts with phrases."""

import json
import os
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from transformers import PreTrainedTokenizerBase

from hf_targets.data.atomic_write import written_together
from hf_targets.data.progress import progress
from hf_targets.data.tokenization import special_token_ids, tokenizer_fingerprint
from hf_targets.phrases.mining.miner import MinedText, PhraseMiner
from hf_targets.phrases.vocabulary.sources import PhraseSource, SourceTable
from hf_targets.phrases.vocabulary.store import PhraseStore, TokenIds, integers, one_for_each, phrase_key, several
from hf_targets.phrases.vocabulary.tokenization import (
    LeadingSpace,
    character_ends,
    phrase_forms,
    text_mid_text,
    tokenize_mid_text,
)
from hf_targets.retrieval.collection import DocumentCollection

FILE = "phrase_vocabulary.safetensors"
_ARRAYS: tuple[str, ...] = ("tokens", "offsets", "is_alive", "sources")


@dataclass(frozen=True)
class PhraseSpan:
    """The characters [start, end) of a decoded text that come from one phrase, its leading space included.

    Those that tokens wrote and that stand in a document have no phrase, and no id.
    """

    start: int
    end: int
    phrase_id: int | None
    text: str
    sources: tuple[PhraseSource, ...]


class PhraseVocabulary(PhraseStore):
    """A set of phrases, each of which a model can generate in one step. Phrases can be added and removed.

    Two phrases with the same tokens are one phrase, with the sources of both. " New York" and "New York" have different
    tokens and are two phrases.

    Attributes:
        tokenizer: Of the phrases' tokens.
        embeddings_folder: Where models keep the embeddings of the phrases, unless they have a folder of their own; None
            in the beginning, until documents of a `DocumentCollection` are added.

    >>> from hf_targets.data.tokenization import word_level_tokenizer
    >>> tokenizer = word_level_tokenizer(["the cat sat on the mat\\n"])
    >>> phrases = PhraseVocabulary.from_phrases(["cat sat", "on the mat"], tokenizer)
    >>> phrases.vocab_size, list(phrases)
    (8, [8, 9])
    >>> phrases.encode("the cat sat on the mat")
    [0, 8, 9]
    >>> phrases.decode([0, 8, 9])
    'the cat sat on the mat'
    >>> [(span.start, span.end, span.text) for span in phrases.spans([0, 8, 9])]
    [(3, 11, ' cat sat'), (11, 22, ' on the mat')]
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, vocab_size: int | None = None) -> None:
        """Make an empty vocabulary.

        Args:
            vocab_size: Rows of the model's embedding, if they are more than the tokenizer's ids; None: the tokenizer's.
        """
        num_tokens = max(len(tokenizer), *(id_ + 1 for id_ in tokenizer.added_tokens_decoder), 0)
        if vocab_size is not None and vocab_size < num_tokens:
            raise ValueError(
                f"vocab_size must be at least {num_tokens}, the number of the tokenizer's ids, got {vocab_size}; give "
                "the number of rows of the model's embedding"
            )
        super().__init__(num_tokens if vocab_size is None else vocab_size, special_token_ids(tokenizer))
        self.tokenizer, self.embeddings_folder = tokenizer, cast(Path | None, None)

    @classmethod
    def from_phrases(
        cls,
        phrases: Iterable[str],
        tokenizer: PreTrainedTokenizerBase,
        *,
        vocab_size: int | None = None,
        **settings: Any,
    ) -> Self:
        """Return a vocabulary with some texts as phrases; `settings` are those of `add`."""
        vocabulary = cls(tokenizer, vocab_size=vocab_size)
        vocabulary.add(phrases, **settings)
        return vocabulary

    @classmethod
    def from_documents(
        cls,
        documents: Mapping[str, str] | Iterable[str],
        tokenizer: PreTrainedTokenizerBase,
        miner: PhraseMiner,
        *,
        vocab_size: int | None = None,
        **settings: Any,
    ) -> Self:
        """Return a vocabulary with the phrases of some documents; `settings` are those of `add_documents`."""
        vocabulary = cls(tokenizer, vocab_size=vocab_size)
        vocabulary.add_documents(documents, miner, **settings)
        return vocabulary

    @classmethod
    def from_token_ids(
        cls, phrases: Iterable[TokenIds], tokenizer: PreTrainedTokenizerBase, *, vocab_size: int | None = None
    ) -> Self:
        """Return a vocabulary of phrases that are given by their tokens; see `add_token_ids`."""
        vocabulary = cls(tokenizer, vocab_size=vocab_size)
        vocabulary.add_token_ids(phrases)
        return vocabulary

    def add(
        self,
        phrases: Iterable[str],
        *,
        sources: Iterable[Iterable[PhraseSource]] | None = None,
        leading_space: LeadingSpace = "add",
        single_tokens: Literal["error", "skip"] = "error",
    ) -> list[int]:
        """Add texts as phrases, in composed form (NFC), and return their ids in order.

        A phrase that is in the set already keeps its id, and the new sources are added to its sources.

        Args:
            sources: The sources of each text; None: none.
            leading_space: "add" uses the tokens of the text after a space, as inside a sentence. "keep" uses the tokens
                of the text directly after another character, such as an opening bracket. "both" adds two phrases. A
                text that begins with white space is used as it is, with any of the three.
            single_tokens: For a text of one token, which the model can generate in one step already: "error" raises,
                and "skip" leaves the text out, so that no id is returned for it.
        Raises:
            ValueError: If a text is empty or only white space, has fewer than two tokens, or has a special token.
                Nothing is added in this case.
        """
        texts = several(phrases, "phrases")
        forms, form_sources = [], []
        for text, origins in zip(texts, one_for_each(sources, len(texts)), strict=True):
            of_text = phrase_forms(text, leading_space)
            forms.extend(of_text)
            form_sources.extend([origins] * len(of_text))
        found = []
        for form, ids, origins in zip(forms, tokenize_mid_text(forms, self.tokenizer), form_sources, strict=True):
            if len(ids) == 1 and single_tokens == "skip":
                continue
            if len(ids) < 2 or not self._special_ids.isdisjoint(ids):
                rule = "no special token in it" if len(ids) > 1 else "two tokens or more"
                tokens = self.tokenizer.convert_ids_to_tokens(ids)
                other = "" if len(ids) > 1 else ", or give single_tokens='skip'"
                raise ValueError(
                    f"a phrase must have {rule}, and the tokens of {form!r} are {tokens}; leave it out{other}"
                )
            found.append((ids, origins))
        return self.add_token_ids([ids for ids, _ in found], sources=[origins for _, origins in found])

    def add_documents(
        self,
        documents: Mapping[str, str] | Iterable[str],
        miner: PhraseMiner,
        *,
        markers: Mapping[str, str] | None = None,
    ) -> list[int]:
        """Add the phrases that `miner` finds in some documents, and return the id of each distinct phrase.

        Each position where a phrase is found becomes one of its sources.

        Args:
            documents: A mapping from names to texts, or only texts, which get the names "0", "1", ..., and in a later
                call the numbers that follow: the names begin at the number of documents so far.
            markers: A text for each document that ends its phrases, such as "[1]", so that a phrase cites where it
                comes from. A source is the phrase without it. None: no text.
        Raises:
            ValueError: If `documents` is a single text, the tokenizer is not a fast one, the miner gives an invalid
                phrase, or a document has no marker.
        Source: of the markers, Liu et al., "Generation with Dynamic Vocabulary", section 3.5.
        """
        if isinstance(documents, DocumentCollection):
            self.embeddings_folder = documents.phrase_folder
        given = documents if isinstance(documents, Mapping) else several(documents, "documents")
        with self._lock:  # texts that another thread adds get other names
            named = cast(Mapping[str, str], given) if isinstance(given, Mapping) else self._sources.numbered(given)
            for name in named:
                self._ending(name, markers)
            self._sources.name(named)
        found = []
        with progress(len(named), "mining phrases", unit="document") as bar:
            for name, text in named.items():
                found.append((name, MinedText.of(text, self.tokenizer, miner)))
                bar.update()
        return self.add_mined(found, markers=markers)

    def add_mined(
        self, documents: Iterable[tuple[str, MinedText]], *, markers: Mapping[str, str] | None = None
    ) -> list[int]:
        """Add the phrases that `MinedText.of` found in named documents before, as `add_documents` does.

        `MinedText.of` is slow with a parser: it may run in several processes, and its results are added here.
        """
        found = [(name, mined, self._ending(name, markers)) for name, mined in documents]
        for _, mined, ending in found:
            num_special = np.append(0, np.cumsum(np.isin(mined.ids, list(self._special_ids))))
            firsts, stops = mined.spans[:, :2].T
            if ((stops - firsts + len(ending) < 2) | (num_special[firsts] < num_special[stops])).any():
                raise ValueError("a phrase must have two tokens or more and no special token, and a miner gave others")
        ids: dict[int, None] = {}
        with self._lock:
            for name, mined, ending in found:
                tokens, key = phrase_key(mined.ids), phrase_key(ending)
                edges = (mined.spans[:, :2] * array("q").itemsize).tolist()
                of_document = self._add(tokens[first:stop] + key for first, stop in edges)
                self._sources.add(name, of_document, mined.spans[:, 2], mined.spans[:, 3])
                ids |= dict.fromkeys(of_document)
        return list(ids)

    def _ending(self, name: str, markers: Mapping[str, str] | None) -> tuple[int, ...]:
        """Return the tokens of a document's marker."""
        if markers is None:
            return ()
        if not markers.get(name):
            raise ValueError(f"each document needs a marker, and {name!r} has none")
        return tuple(tokenize_mid_text([markers[name]], self.tokenizer)[0])

    @property
    def fingerprint(self) -> str:
        """The `tokenizer_fingerprint` of the tokenizer, which differs between tokenizers."""
        return tokenizer_fingerprint(self.tokenizer)

    def text(self, phrase_id: int) -> str:
        """Return the text of a phrase in the middle of a longer text, with its leading space if it has one."""
        return text_mid_text(self.token_ids(phrase_id), self.tokenizer)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the tokenizer's ids of a text, with tokens replaced by phrases (`merge_phrases`)."""
        return self.merge_phrases(self.tokenizer.encode(text, add_special_tokens=add_special_tokens, verbose=False))

    def decode(self, ids: TokenIds, *, skip_special_tokens: bool = False) -> str:
        """Return the text of tokens and phrases."""
        return cast(str, self.tokenizer.decode(self.expand(ids), skip_special_tokens=skip_special_tokens))

    def spans(self, ids: TokenIds, *, skip_special_tokens: bool = False) -> list[PhraseSpan]:
        """Return the characters of `decode(ids)` that come from each phrase, in order.

        If the bytes of one character are split between neighbours, it belongs to the neighbour with the last byte.
        """
        expanded: list[int] = []
        written: list[tuple[int, int, int]] = []  # id, first token, token after the last
        for id_ in integers(ids):
            tokens = self.expand([id_])
            if id_ >= self.vocab_size:
                written.append((id_, len(expanded), len(expanded) + len(tokens)))
            expanded.extend(tokens)
        text = cast(str, self.tokenizer.decode(expanded, skip_special_tokens=skip_special_tokens))
        cuts = sorted({cut for _, *edges in written for cut in edges})
        characters = character_ends(expanded, cuts, self.tokenizer, skip_special_tokens=skip_special_tokens)
        positions = dict(zip(cuts, characters, strict=True))
        return [
            PhraseSpan(
                positions[first], positions[stop], id_, text[positions[first] : positions[stop]], self.sources(id_)
            )
            for id_, first, stop in written
        ]

    def save(self, folder: str | os.PathLike) -> None:
        """Write the phrases, their ids and sources to a safetensors file in a folder, which is made if it is missing.

        An earlier file stays until this one is complete.
        """
        with self._lock:
            documents, sources = self._sources.rows()
            arrays: dict[str, np.ndarray] = dict(zip(_ARRAYS, (*self.arrays(), sources), strict=True))
        settings = {"vocab_size": self.vocab_size, "tokenizer": self.fingerprint, "documents": documents}
        settings["sha256"] = _digest(arrays)
        with written_together(folder, FILE) as unfinished:
            save_file(arrays, unfinished / FILE, {"settings": json.dumps(settings)})

    @classmethod
    def load(cls, folder: str | os.PathLike, tokenizer: PreTrainedTokenizerBase) -> Self:
        """Return the vocabulary that was saved to a folder, with the same ids. Removed phrases stay removed.

        Raises:
            ValueError: If the file is missing or damaged, or the tokenizer is another one.
        """
        file = Path(folder, FILE)
        try:
            with safe_open(file, "numpy") as content:
                settings = json.loads((content.metadata() or {}).get("settings", "{}"))
                arrays = {name: content.get_tensor(name) for name in _ARRAYS}
                if settings["sha256"] != _digest(arrays):
                    raise ValueError("its arrays are not those that were saved")
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise ValueError(f"{file} is no whole phrase vocabulary: {error}; build and save it again") from error
        vocabulary = cls(tokenizer, vocab_size=settings["vocab_size"])
        if settings["tokenizer"] != vocabulary.fingerprint:
            raise ValueError(f"the vocabulary in {file} was made with another tokenizer; load it with that one")
        edges, data = (arrays["offsets"] * 8).tolist(), arrays["tokens"].tobytes()
        for slot, is_alive in enumerate(arrays["is_alive"].tolist()):
            vocabulary._append(data[edges[slot] : edges[slot + 1]], is_alive=is_alive)
        vocabulary._sources = SourceTable.of_rows(settings["documents"], arrays["sources"])
        return vocabulary


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    return sha256(b"".join(array.tobytes() for array in arrays.values())).hexdigest()
