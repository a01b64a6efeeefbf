"""Batches for a `CopyGenerator`: texts cut into phrases that stand in other documents, and these documents."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_targets.baselines.copy_documents import EncodedDocument, encode_documents, join_pieces, longest_windows
from hf_targets.maths.losses import IGNORED
from hf_targets.phrases.batches.entries import padded
from hf_targets.phrases.mining.tokenized_text import TokenizedText
from hf_targets.phrases.pool import Retriever
from hf_targets.retrieval.documents import DocumentRetriever, names_near

_OWN_TOKENS = 16  # in a row, of a document that is taken for a part of the text itself
_MORE = 8  # documents to look for beyond those wanted, as some may be parts of the text
_MAX_KEPT = 2**14  # documents whose tokens are kept


class CopyCollator:
    """A data collator: each row is cut into the longest phrases that its nearest documents have, from left to right.

    A batch has `input_ids`, `attention_mask` and `labels`, and `sources` of `CopyGenerator.forward`. A document with 16
    tokens in a row of a text, or with all of a shorter one, is none of that text: its states would have read what is to
    be predicted. The first token of a row is in no phrase.

    Workers of a `DataLoader` (`--dataloader_num_workers`) make the same batches, each with documents of its own.

    Args:
        documents: Texts by name, such as those of `documents_of`.
        tokenizer, encoder_tokenizer: Fast tokenizers of the model and of its encoder.
        retriever: Finds the documents of a text; None: by shared words.
        num_documents: Of a text.
        max_tokens: Of a phrase, 2 or more.
    Raises:
        ValueError: If `max_tokens` is below 2, or `documents` have no text or word to be found by.
    Source: Lan et al. 2023.  Departs: they match words, we match the model's tokens; they also copy from the beginning
        of the text itself.
    """

    def __init__(
        self,
        documents: Mapping[str, str],
        tokenizer: PreTrainedTokenizerBase,
        encoder_tokenizer: PreTrainedTokenizerBase,
        *,
        retriever: Retriever | None = None,
        num_documents: int = 4,
        max_tokens: int = 8,
    ) -> None:
        if max_tokens < 2:
            raise ValueError(f"max_tokens must be 2 or more, got {max_tokens}; a phrase has two tokens at least")
        self.tokenizer, self.encoder_tokenizer, self.num_documents = tokenizer, encoder_tokenizer, num_documents
        self.retriever = DocumentRetriever.lexical(documents) if retriever is None else retriever
        self.documents, self.max_tokens = documents, max_tokens
        self._known: dict[str, EncodedDocument] = {}

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the batch of rows with `input_ids`, and perhaps `attention_mask` and `labels`."""
        columns = [np.array([one["input_ids"], one.get("labels", one["input_ids"])]) for one in features]
        kept = [np.array(one.get("attention_mask", [1] * len(one["input_ids"]))) > 0 for one in features]
        ids, labels = zip(*(column[:, keep] for column, keep in zip(columns, kept, strict=True)), strict=True)
        texts = [TokenizedText.from_ids(row.tolist(), self.tokenizer) for row in ids]
        found = names_near(self.retriever, [text.text for text in texts], self.num_documents + _MORE)
        self._read_all(name for row in found for name in row[: self.num_documents])
        near = [self._others(text, names) for text, names in zip(texts, found, strict=True)]
        names = list(dict.fromkeys(name for row in near for name in row))
        sources, edges = join_pieces([self._read(name) for name in names], self.encoder_tokenizer)
        edges_of = dict(zip(names, edges, strict=True))
        starts, ends = ([[-1] * len(row) for row in ids] for _ in range(2))
        for number, text in enumerate(texts):
            documents = [(self._read(name).text, edges_of[name]) for name in near[number]]
            for first, stop, start, end in longest_windows(text, documents, self.max_tokens):
                if first and (labels[number][first:stop] != IGNORED).all():
                    starts[number][first], ends[number][first] = start, end
        pads = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        pad, mask = next(one for one in pads if isinstance(one, int)), [[1] * len(row) for row in ids]
        columns = {"input_ids": (ids, pad), "attention_mask": (mask, 0), "labels": (labels, IGNORED)}
        batch: dict[str, Any] = {name: torch.from_numpy(padded(*column)) for name, column in columns.items()}
        sources |= {"starts": torch.from_numpy(padded(starts, -1)), "ends": torch.from_numpy(padded(ends, -1))}
        for name in list(self._known)[:-_MAX_KEPT]:
            del self._known[name]
        return {**batch, "sources": sources}

    def _others(self, text: TokenizedText, names: Sequence[str]) -> list[str]:
        """Return the nearest documents that are no part of a text."""
        size = min(_OWN_TOKENS, len(text) - 1)  # the first token may have lost its space
        own = _runs(text, size)
        others = (name for name in names if own.isdisjoint(_runs(self._read(name).text, size)))
        return list(islice(others, self.num_documents))

    def _read_all(self, names: Iterable[str]) -> None:
        """Read the documents that are not known yet, at once."""
        new = list(dict.fromkeys(name for name in names if name not in self._known))
        read = encode_documents([self.documents[name] for name in new], self.tokenizer, self.encoder_tokenizer)
        self._known |= zip(new, read, strict=True)

    def _read(self, name: str) -> EncodedDocument:
        self._read_all([name])
        return self._known[name]


def _runs(text: TokenizedText, size: int) -> set[tuple[int, ...]]:
    return {tuple(text.ids[start : start + size]) for start in range(len(text) - size + 1)}
