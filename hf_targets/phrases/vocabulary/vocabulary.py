"""Phrases as words of a model's vocabulary: made of texts and documents, found again in what the model writes."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Literal, Self, cast

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_targets.phrases.mining.miner import PhraseMiner
from hf_targets.phrases.mining.tokenized_text import TokenizedText
from hf_targets.phrases.vocabulary.file_rules import check_arrays, check_settings
from hf_targets.phrases.vocabulary.files import ARRAYS_FILE, SETTINGS_FILE, read_phrases, write_phrases
from hf_targets.phrases.vocabulary.store import PhraseSource, PhraseStore, TokenIds, integers, one_for_each, several
from hf_targets.phrases.vocabulary.tokenization import (
    LeadingSpace,
    Normalization,
    character_ends,
    phrase_forms,
    text_mid_text,
    tokenize_mid_text,
    tokenizer_fingerprint,
)
from hf_targets.progress import progress


@dataclass(frozen=True)
class PhraseSpan:
    """The characters [start, end) of an output that one phrase wrote, a leading space included."""

    start: int
    end: int
    phrase_id: int
    text: str
    sources: tuple[PhraseSource, ...]


class PhraseVocabulary(PhraseStore):
    """A set of phrases that a model may write in one step each, and that may grow and shrink.

    Phrases are the same if their tokens are: " New York" and "New York" are two, and the sources of one that is added
    twice are joined. `tokenizer` is whose tokens they are made of.

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
            vocab_size: Rows of the model's embedding, where it has more of them than the tokenizer has ids.

        Raises:
            ValueError: If `vocab_size` has no room for each id of the tokenizer.
        """
        num_tokens = max(len(tokenizer), *(id_ + 1 for id_ in tokenizer.added_tokens_decoder), 0)
        if vocab_size is not None and vocab_size < num_tokens:
            raise ValueError(
                f"vocab_size must be at least {num_tokens}, the ids of the tokenizer, got {vocab_size}; give the rows "
                f"of the model's embedding, after resize_token_embeddings if it has fewer"
            )
        super().__init__(num_tokens if vocab_size is None else vocab_size, tokenizer.all_special_ids)
        self.tokenizer = tokenizer

    @classmethod
    def from_phrases(
        cls,
        phrases: Iterable[str],
        tokenizer: PreTrainedTokenizerBase,
        *,
        leading_space: LeadingSpace = "add",
        single_tokens: Literal["error", "skip"] = "error",
        normalization: Normalization = "NFC",
        vocab_size: int | None = None,
    ) -> Self:
        """Return the vocabulary of some texts; see `add`."""
        vocabulary = cls(tokenizer, vocab_size=vocab_size)
        vocabulary.add(phrases, leading_space=leading_space, single_tokens=single_tokens, normalization=normalization)
        return vocabulary

    @classmethod
    def from_documents(
        cls,
        documents: Mapping[str, str] | Iterable[str],
        tokenizer: PreTrainedTokenizerBase,
        miner: PhraseMiner,
        *,
        vocab_size: int | None = None,
    ) -> Self:
        """Return the vocabulary of the phrases that `miner` finds in some documents; see `add_documents`."""
        vocabulary = cls(tokenizer, vocab_size=vocab_size)
        vocabulary.add_documents(documents, miner)
        return vocabulary

    @classmethod
    def from_token_ids(
        cls, phrases: Iterable[TokenIds], tokenizer: PreTrainedTokenizerBase, *, vocab_size: int | None = None
    ) -> Self:
        """Return the vocabulary of phrases given by their tokens; see `add_token_ids`."""
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
        normalization: Normalization = "NFC",
    ) -> list[int]:
        """Add texts, and return their ids in order; a phrase that is there keeps its id, and gets the new sources.

        Args:
            sources: Those of each text.
            leading_space: "add" takes the tokens that a text has after a space, as within a sentence, "keep" those that
                it has right after another character, such as an opening bracket, and "both" makes two phrases of it.
                A text that begins with white space is taken as it is.
            single_tokens: Whether a text that is one token, hence a word of the model already, is an "error", or left
                out, of the ids too ("skip").
            normalization: The Unicode form that texts are brought to, or None to take them as they are.

        Raises:
            ValueError: If a text is empty or white space alone, is one token or none, or has a special token in it;
                nothing is added then.
        """
        if single_tokens not in ("error", "skip"):
            raise ValueError(f"single_tokens must be 'error' or 'skip', got {single_tokens!r}")
        texts = several(phrases, "phrases")
        forms, form_sources = [], []
        for text, origins in zip(texts, one_for_each(sources, len(texts)), strict=True):
            of_text = phrase_forms(text, leading_space, normalization)
            forms.extend(of_text)
            form_sources.extend([origins] * len(of_text))
        found = []
        for form, ids, origins in zip(forms, tokenize_mid_text(forms, self.tokenizer), form_sources, strict=True):
            if len(ids) == 1 and single_tokens == "skip":
                continue
            if len(ids) < 2 or not self._special_ids.isdisjoint(ids):
                rule = "no special token in it" if len(ids) > 1 else "two tokens or more"
                way_out = "leave it out" + (", as single_tokens='skip' does" if len(ids) == 1 else "")
                tokens = self.tokenizer.convert_ids_to_tokens(ids)
                raise ValueError(f"a phrase must have {rule}, and the tokens of {form!r} are {tokens}; {way_out}")
            found.append((ids, origins))
        return self.add_token_ids([ids for ids, _ in found], sources=[origins for _, origins in found])

    def add_documents(self, documents: Mapping[str, str] | Iterable[str], miner: PhraseMiner) -> list[int]:
        """Add the phrases that `miner` finds in some documents, and return their ids, each once.

        Each position where a phrase is found becomes one of its sources.

        Args:
            documents: Texts by their names, or texts alone, which are then named "0", "1", ....

        Raises:
            ValueError: If `documents` is one text, or the tokenizer not a fast one.
        """
        if isinstance(documents, Mapping):
            named = cast(Mapping[str, str], documents)
        else:
            named = {str(index): text for index, text in enumerate(several(documents, "documents"))}
        found: dict[tuple[int, ...], list[PhraseSource]] = {}
        with progress(len(named), "mining phrases", unit="document") as bar:
            for name, document in named.items():
                text = TokenizedText.from_text(document, self.tokenizer)
                starts, ends = text.offsets[:, 0].tolist(), text.offsets[:, 1].tolist()
                for first, stop in miner.spans(text).tolist():
                    start, end = starts[first], ends[stop - 1]
                    while start < end and document[start].isspace():
                        start += 1
                    found.setdefault(tuple(text.ids[first:stop]), []).append(PhraseSource(name, start, end))
                bar.update()
        return self.add_token_ids(list(found), sources=found.values())

    def merge(self, other: "PhraseVocabulary") -> dict[int, int]:
        """Add the phrases and sources of another vocabulary, and return the id here for each id there.

        Raises:
            ValueError: If the other's tokenizer is another one.
        """
        if other.tokenizer is not self.tokenizer:
            self._check_tokenizer(other.fingerprint, "the other vocabulary")
        ids = list(other)
        phrases, sources = [other.token_ids(id_) for id_ in ids], [other.sources(id_) for id_ in ids]
        return dict(zip(ids, self.add_token_ids(phrases, sources=sources), strict=True))

    @property
    def fingerprint(self) -> str:
        """What tells the tokenizer from another one."""
        return tokenizer_fingerprint(self.tokenizer)

    def text(self, phrase_id: int) -> str:
        """Return what a phrase writes in the middle of a text, with its leading space if it has one.

        Raises:
            ValueError: As for `token_ids`.
        """
        return text_mid_text(self.token_ids(phrase_id), self.tokenizer)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text as the tokenizer cuts it, with phrases instead of their tokens (`merge_phrases`)."""
        return self.merge_phrases(self.tokenizer.encode(text, add_special_tokens=add_special_tokens, verbose=False))

    def decode(self, ids: TokenIds, *, skip_special_tokens: bool = False) -> str:
        """Return the text of tokens and phrases.

        Raises:
            ValueError: As for `expand`.
        """
        return cast(str, self.tokenizer.decode(self.expand(ids), skip_special_tokens=skip_special_tokens))

    def spans(self, ids: TokenIds, *, skip_special_tokens: bool = False) -> list[PhraseSpan]:
        """Return which characters of `decode(ids)` came from which phrase, in order.

        A character of which a phrase has some bytes and its neighbour others belongs to the one with the last byte.

        Raises:
            ValueError: As for `expand`.
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
        """Write the phrases, their ids and sources to two files in a folder; `load` refuses half a write."""
        tokens, offsets, is_alive = self.arrays()
        documents: dict[str, int] = {}
        rows = [
            (id_, documents.setdefault(source.document, len(documents)), source.start, source.end)
            for id_ in sorted(self._sources)
            for source in self._sources[id_]
        ]
        arrays = {"tokens": tokens, "offsets": offsets, "is_alive": is_alive}
        arrays["sources"] = np.array(rows, np.int64).reshape(-1, 4)  # phrase, document, start, end
        settings = {
            "vocab_size": self.vocab_size,
            "tokenizer": self.fingerprint,
            "documents": list(documents),
        }
        write_phrases(folder, settings, arrays)

    @classmethod
    def load(cls, folder: str | os.PathLike, tokenizer: PreTrainedTokenizerBase) -> Self:
        """Return the vocabulary that was saved to a folder, with the same ids, and none of the removed ones.

        Raises:
            ValueError: If a file is missing, truncated or altered, or breaks a rule of such files (both are told), or
                the tokenizer is another one.
        """
        settings, arrays = read_phrases(folder)
        settings_file, arrays_file = Path(folder, SETTINGS_FILE), Path(folder, ARRAYS_FILE)
        check_settings(settings_file, settings)
        cls(tokenizer)._check_tokenizer(settings["tokenizer"], f"the vocabulary in {settings_file}")
        try:
            vocabulary = cls(tokenizer, vocab_size=settings["vocab_size"])
        except ValueError as error:
            raise ValueError(f"{settings_file} is altered: {error}") from error
        documents = settings["documents"]
        sizes = {"vocab_size": vocabulary.vocab_size, "num_documents": len(documents)}
        check_arrays(arrays_file, arrays, special_ids=vocabulary._special_ids, **sizes)
        offsets, tokens = arrays["offsets"].tolist(), arrays["tokens"].tolist()
        for slot, is_alive in enumerate(arrays["is_alive"].tolist()):
            phrase = tuple(tokens[offsets[slot] : offsets[slot + 1]])
            if is_alive and phrase in vocabulary._ids:
                raise ValueError(
                    f"{arrays_file} is altered: a phrase must be there once, and {list(phrase)} is twice; "
                    "build the phrases again"
                )
            vocabulary._append(phrase, is_alive=is_alive)
        for id_, rows in groupby(arrays["sources"].tolist(), key=itemgetter(0)):
            vocabulary._sources[id_] = tuple(PhraseSource(documents[row[1]], row[2], row[3]) for row in rows)
        return vocabulary

    def _check_tokenizer(self, fingerprint: str, owner: str) -> None:
        if fingerprint != self.fingerprint:
            raise ValueError(
                f"phrases are tokens of one tokenizer, and {owner} was made with another than this "
                f"{type(self.tokenizer).__name__}; use that one, or build the phrases again from their texts"
            )
