"""Batches for a `CopyGenerator`: texts cut into phrases that stand in other documents, and these documents."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_targets.baselines.copy_documents import read_pieces, windows_of
from hf_targets.maths.losses import IGNORED
from hf_targets.phrases.batches.entries import padded
from hf_targets.phrases.mining.forward_maximum_matching import ForwardMaximumMatching
from hf_targets.phrases.mining.tokenized_text import TokenizedText
from hf_targets.phrases.pool import Retriever
from hf_targets.retrieval.documents import DocumentRetriever

_OWN_TOKENS = 16  # in a row, of a document that is taken for a part of the text itself
_MORE = 8  # documents to look for beyond those wanted, as some may be parts of the text


class CopyCollator:
    """A data collator: each row is cut into the longest phrases that its nearest documents have, from left to right.

    A batch has `input_ids`, `attention_mask` and `labels`, and `sources` of `CopyGenerator.forward`. A document with 16
    tokens in a row of a text, or with all of a shorter one, is none of that text: its states would have read what is to
    be predicted. The first token of a row is in no phrase.

    Args:
        documents: Texts by name, such as those of `documents_of`.
        tokenizer, encoder_tokenizer: Fast tokenizers of the model and of its encoder.
        retriever: Finds the documents of a text; None: by shared words.
        num_documents: Of a text.
        max_tokens: Of a phrase, 2 or more.
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
        self.tokenizer, self.encoder_tokenizer, self.num_documents = tokenizer, encoder_tokenizer, num_documents
        self.retriever = DocumentRetriever.lexical(documents) if retriever is None else retriever
        self.max_tokens = max_tokens
        self._text = lru_cache(2**14)(lambda name: TokenizedText.from_text(documents[name], tokenizer))

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the batch of rows with `input_ids`, and perhaps `attention_mask` and `labels`."""
        columns = [np.array([one["input_ids"], one.get("labels", one["input_ids"])]) for one in features]
        kept = [np.array(one.get("attention_mask", [1] * len(one["input_ids"]))) > 0 for one in features]
        ids, labels = zip(*(column[:, keep] for column, keep in zip(columns, kept, strict=True)), strict=True)
        texts = [TokenizedText.from_ids(row.tolist(), self.tokenizer) for row in ids]
        found = self.retriever.retrieve([text.text for text in texts], self.num_documents + _MORE)
        near = [self._others(text, [name for name, _ in names]) for text, names in zip(texts, found, strict=True)]
        names = list(dict.fromkeys(name for row in near for name in row))
        sources, edges = read_pieces([self._text(name) for name in names], self.encoder_tokenizer)
        edges_of = dict(zip(names, edges, strict=True))
        starts, ends = ([[-1] * len(row) for row in ids] for _ in range(2))
        for number, text in enumerate(texts):
            windows = windows_of(((name, self._text(name), edges_of[name]) for name in near[number]), self.max_tokens)
            for first, stop in ForwardMaximumMatching(windows).spans(text).tolist() if windows else ():
                if first and (labels[number][first:stop] != IGNORED).all():
                    starts[number][first], ends[number][first], _ = windows[tuple(text.ids[first:stop])][0]
        pads = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        pad, mask = next(one for one in pads if isinstance(one, int)), [[1] * len(row) for row in ids]
        columns = {"input_ids": (ids, pad), "attention_mask": (mask, 0), "labels": (labels, IGNORED)}
        batch: dict[str, Any] = {name: torch.from_numpy(padded(*column)) for name, column in columns.items()}
        sources |= {"starts": torch.from_numpy(padded(starts, -1)), "ends": torch.from_numpy(padded(ends, -1))}
        return {**batch, "sources": sources}

    def _others(self, text: TokenizedText, names: Sequence[str]) -> list[str]:
        """Return the nearest documents that are no part of a text."""
        size = min(_OWN_TOKENS, len(text) - 1)  # the first token may have lost its space
        own = _runs(text, size)
        return [name for name in names if own.isdisjoint(_runs(self._text(name), size))][: self.num_documents]


def _runs(text: TokenizedText, size: int) -> set[tuple[int, ...]]:
    return {tuple(text.ids[start : start + size]) for start in range(len(text) - size + 1)}
