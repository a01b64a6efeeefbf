"""Batches of texts in which some spans of tokens are phrases, with a table of these phrases and of negatives."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_targets.data.tokenization import special_token_ids
from hf_targets.maths.losses import IGNORED
from hf_targets.phrases.batches.entries import (
    Phrase,
    PhrasedText,
    PhraseEntries,
    PhraseWindow,
    choose_spans,
    padded,
    usable_spans,
)
from hf_targets.phrases.batches.negatives import InBatch, NegativeStrategy, PreBatch, Prefixes, SelfRetrieval
from hf_targets.phrases.mining.miner import PhraseMiner, check_miner
from hf_targets.phrases.mining.tokenized_text import TokenizedText

SEED_COLUMN, BEFORE_COLUMN = "row_seed", "rows_before"


class PhraseCollator:
    r"""A data collator for dynamic-vocabulary models: each row as two sequences, and a table of phrases for the batch.

    The static sequence is the row's token ids, padded on the right. In the interleaved sequence some spans of tokens
    are replaced by phrases, with ids from V on: V + p is entry p of the batch's table. The table holds these phrases
    and their negatives. A phrase contains no special token and no token without a label. Columns other than
    `input_ids`, `attention_mask` and `labels` are dropped.

    - `input_ids`, `attention_mask`, `labels`: the static sequence; labels are -100 at padding.
    - `phrase_input_ids`, `phrase_attention_mask`, `phrase_targets`: the interleaved sequence.
    - `token_positions`: for each position of the interleaved sequence, the index of its last token in the static one.
    - `windows`: (windows, longest) static ids, padded with 0; no window is a prefix of another.
    - `phrase_windows`: (entries, 2), `window` and `length`: the entry is the first `length` tokens of that window. All
      entries differ.
    - `phrase_mask`: (rows, entries), true where the row's table has the entry.

    With `padding_free` the rows follow each other in one row without padding. `position_ids` and `phrase_position_ids`,
    which begin at 0 with each of them, then stand in the place of the two masks, and first tokens have the label -100.

    The rows of `DynamicVocabTrainer` have the columns of `DrawnRows`: a seed, by which the phrases of
    the row are chosen, and the rows of earlier batches, for `PreBatch`. A batch then depends only on its rows.

    Args:
        tokenizer: The fast tokenizer of the ids. The miner reads the text that it decodes.
        miner: Finds the candidates for phrases.
        vocab_size: V, the number of rows of the model's embedding; None: the number of the tokenizer's ids.
        negatives: The sources of negatives; None: `InBatch()`, `Prefixes()` and `SelfRetrieval()`.
        min_gap: The smallest number of plain tokens between two phrases.
        phrase_rate: Probability of a phrase at each position where one may start. A gap has `min_gap` tokens plus a
            geometric number of positions; with 1 nearly every gap has `min_gap` tokens.
        max_tokens: The largest number of tokens of a phrase; longer candidates are left out. None: no limit.
        generator: Chooses the phrases of rows without a seed; None: torch's global one, which differs by worker.
        padding_free: Whether the rows of a batch are packed into one, for a backbone that keeps texts apart by
            `position_ids`, as Llama does.
    Raises:
        ValueError: If a setting is out of range. When called: if a row has no token, an id is outside [0, V), or a
            label is neither its id nor -100.
    Source: Liu et al. 2024, section 2.4, which groups random sequences of words, at least five tokens apart, and gives
        no rate. `max_tokens` is the limit of appendix B for the phrases of its tests.

    >>> from hf_targets.phrases.mining.ngrams import TokenNgrams
    >>> from hf_targets.data.tokenization import word_level_tokenizer
    >>> tokenizer = word_level_tokenizer(["the cat sat on the mat\n"])
    >>> collator = PhraseCollator(tokenizer, TokenNgrams(2, 2), min_gap=1, phrase_rate=1.0)
    >>> ids = tokenizer("the cat sat on the mat")["input_ids"]
    >>> batch = collator([{"input_ids": ids}])
    >>> len(tokenizer), batch["input_ids"].tolist()
    (8, [[0, 2, 5, 4, 0, 3]])
    >>> batch["phrase_input_ids"].tolist(), batch["token_positions"].tolist()
    ([[0, 8, 4, 9]], [[0, 2, 3, 5]])
    >>> batch["windows"].tolist()  # the mat; cat sat on the
    [[0, 3, 0, 0], [2, 5, 4, 0]]
    >>> batch["phrase_windows"].tolist()  # cat sat, the mat, cat sat on, cat sat on the
    [[1, 2], [0, 2], [1, 3], [1, 4]]
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        miner: PhraseMiner,
        *,
        vocab_size: int | None = None,
        negatives: Sequence[NegativeStrategy] | None = None,
        min_gap: int = 5,
        phrase_rate: float = 0.2,
        max_tokens: int | None = 8,
        generator: torch.Generator | None = None,
        padding_free: bool = False,
    ) -> None:
        if min_gap < 0 or not 0 <= phrase_rate <= 1 or (max_tokens is not None and max_tokens < 2):
            raise ValueError(
                "min_gap must be 0 or more, phrase_rate in [0, 1], and max_tokens None or at least 2, got "
                f"{min_gap}, {phrase_rate} and {max_tokens}"
            )
        if vocab_size is not None and vocab_size < len(tokenizer):
            raise ValueError(f"vocab_size must be at least {len(tokenizer)}, the tokenizer's ids, got {vocab_size}")
        for source in negatives or ():
            if isinstance(source, str | type):
                raise ValueError(f"negatives must be objects, got {source!r}; make them with negatives_by_name")
        self.tokenizer = tokenizer
        check_miner(miner)
        self.miner = miner
        self.vocab_size = len(tokenizer) if vocab_size is None else vocab_size
        self.negatives = (InBatch(), Prefixes(), SelfRetrieval()) if negatives is None else tuple(negatives)
        self.min_gap = min_gap
        self.phrase_rate = phrase_rate
        self.max_tokens = max_tokens
        self.generator = generator
        self.padding_free = padding_free
        self._special_ids = special_token_ids(tokenizer)
        self._pad_id = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if isinstance(i, int)), 0)

    @property
    def num_batches_before(self) -> int:
        """The number of earlier batches that a batch takes negatives from."""
        return max((source.num_batches for source in self.negatives if isinstance(source, PreBatch)), default=0)

    def seeded(self, seed: int) -> "PhraseCollator":
        """Return a copy that chooses phrases by `seed`, and that keeps no phrases of earlier batches yet."""
        copied = copy.copy(self)
        copied.generator = torch.Generator().manual_seed(seed)
        copied.negatives = tuple(
            source.without_batches() if isinstance(source, PreBatch) else source for source in self.negatives
        )
        return copied

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Return the batch; the docstring of the class gives names and shapes."""
        if not features:
            raise ValueError("a batch must have at least one row, got an empty list")
        rows = [self._row(feature) for feature in features]
        texts = [self._phrased(*row, feature) for row, feature in zip(rows, features, strict=True)]
        if self.padding_free:
            rows = [(ids, [IGNORED, *labels[1:]]) for ids, labels in rows]
        if BEFORE_COLUMN in features[0]:
            self._recall([feature[BEFORE_COLUMN] for feature in features])
        entries = PhraseEntries(self._windows(texts), len(texts), stop_ids=self._special_ids)
        if any(isinstance(strategy, InBatch) for strategy in self.negatives):
            entries.row_mask[:] = True

        pieces = [text.pieces() for text in texts]
        sequences = [
            [self._id(text.tokens[start:end], entries) for start, end in spans]
            for text, spans in zip(texts, pieces, strict=True)
        ]
        targets = [
            [IGNORED if labels[start] == IGNORED else id_ for id_, (start, _) in zip(sequence, spans, strict=True)]
            for (_, labels), sequence, spans in zip(rows, sequences, pieces, strict=True)
        ]
        firsts, name, numbers, joined = [0] * len(rows), "attention_mask", _ones, padded
        if self.padding_free:
            firsts = np.cumsum([0, *(len(text.tokens) for text in texts)]).tolist()[:-1]
            name, numbers, joined = "position_ids", range, _packed
        arrays = {
            "input_ids": joined([text.tokens for text in texts], self._pad_id),
            name: joined([numbers(len(text.tokens)) for text in texts], 0),
            "labels": joined([labels for _, labels in rows], IGNORED),
            "phrase_input_ids": joined(sequences, self._pad_id),
            f"phrase_{name}": joined([numbers(len(sequence)) for sequence in sequences], 0),
            "phrase_targets": joined(targets, IGNORED),
            "token_positions": joined(
                [[first + end - 1 for _, end in spans] for first, spans in zip(firsts, pieces, strict=True)], 0
            ),
            "windows": padded(entries.windows, 0),
            "phrase_windows": entries.window_slices,
            "phrase_mask": entries.row_mask,
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _row(self, feature: Mapping[str, Any]) -> tuple[list[int], list[int]]:
        """Return the ids and labels of all tokens except padding."""
        ids = np.asarray(feature["input_ids"])
        mask = feature.get("attention_mask")
        labels = feature.get("labels")
        seen = np.ones(len(ids), bool) if mask is None else np.asarray(mask).astype(bool)
        targets = ids if labels is None else np.asarray(labels)
        if ids.ndim != 1 or not ids.shape == seen.shape == targets.shape or not seen.any():
            raise ValueError(
                "a row needs a token that is not padding, and input_ids, attention_mask and labels of one length, got "
                f"the shapes {ids.shape}, {seen.shape} and {targets.shape}, and {seen.sum()} tokens without padding"
            )
        ids, targets = ids[seen], targets[seen]
        if ids.min() < 0 or ids.max() >= self.vocab_size:
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise ValueError(
                f"input_ids must be in [0, {self.vocab_size - 1}], got {wrong}; use the model's own tokenizer"
            )
        if ((targets != ids) & (targets != IGNORED)).any():
            raise ValueError(f"labels must be the input_ids, or {IGNORED} at tokens that are not predicted")
        return ids.tolist(), targets.tolist()

    def _phrased(self, ids: list[int], labels: list[int], feature: Mapping[str, Any]) -> PhrasedText:
        candidates = np.asarray(self.miner.spans(TokenizedText.from_ids(ids, self.tokenizer)), np.int64).reshape(-1, 2)
        barred = np.array([id_ in self._special_ids for id_ in ids]) | (np.array(labels) == IGNORED)
        usable = usable_spans(candidates, barred, self.max_tokens)
        seed = feature.get(SEED_COLUMN)
        generator = self.generator if seed is None else torch.Generator().manual_seed(seed)
        spans = choose_spans(usable, min_gap=self.min_gap, phrase_rate=self.phrase_rate, generator=generator)
        return PhrasedText(tuple(ids), spans)

    def _recall(self, rows_before: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """Let `PreBatch` keep the phrases of earlier batches. Each row brings its earlier rows, the latest first."""
        by_age = zip_longest(*rows_before)
        batches = [[self._phrased(*self._row(row), row) for row in batch if row is not None] for batch in by_age]
        for source in self.negatives:
            if isinstance(source, PreBatch):
                source.recall(batches[::-1])

    def _id(self, piece: Phrase, entries: PhraseEntries) -> int:
        return piece[0] if len(piece) == 1 else self.vocab_size + entries.numbers[piece]

    def _windows(self, texts: Sequence[PhrasedText]) -> Iterator[PhraseWindow]:
        for row, text in enumerate(texts):
            for phrase in text.phrases:
                yield PhraseWindow(phrase, len(phrase), row)
        for strategy in self.negatives:
            yield from strategy.windows(texts)


def _ones(count: int) -> list[int]:
    return [1] * count


def _packed(rows: Sequence[Sequence[int]], fill: int) -> np.ndarray:
    """Return rows one after the other, (1, sum); nothing is filled."""
    return np.array([[value for row in rows for value in row]], np.int64)
