"""Settings that say which text or parallel text a recipe reads, and how it becomes rows."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import datasets
from datasets import Dataset, DatasetDict
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hf_targets import (
    encode_pairs,
    filter_pairs,
    load_corpus,
    load_pairs,
    pack_blocks,
    train_bpe_tokenizer,
    train_joint_bpe,
)
from hf_targets.data.corpora import first_words

read_text, read_pairs = lru_cache(maxsize=2)(load_corpus), lru_cache(maxsize=2)(load_pairs)
"""The loaders, whose texts the runs of a table share; `forget_texts` reads anew what may have changed since."""


def forget_texts() -> None:
    """Let texts be read anew."""
    read_text.cache_clear()
    read_pairs.cache_clear()


def text_digest(splits: Mapping[Any, Dataset]) -> str:
    """Return a number in hexadecimal digits that changes with any text of any split but a stream's."""
    digest = hashlib.sha256()
    for split, part in splits.items():
        if not isinstance(part, Dataset):
            continue  # a stream, which would have to be read for it
        for column in part.column_names:
            digest.update(f"{split} {column} {len(part)}\n".encode())
            for text in part[column]:
                digest.update(repr(text).encode())
    return digest.hexdigest()[:16]


def _text_of(row: dict[str, Any], column: str) -> dict[str, str]:
    text = row[column] or ""
    return {"text": text if text.endswith("\n") else f"{text}\n"}


@dataclass
class TextSettings:
    """A text with the splits train, validation and test, as `load_corpus` finds it."""

    dataset: str = field(
        default="documentation",
        metadata={"help": "Corpus by a name of `load_corpus`, text file, folder, or data set on the Hub."},
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a data set on the Hub."})
    text_column: str = field(default="text", metadata={"help": "Column of a data set that holds the text."})
    max_train_words: int | None = field(default=None, metadata={"help": "Train on so many words only."})
    max_test_words: int | None = field(default=None, metadata={"help": "Test on the first so many words only."})

    def load(self, *, whole: bool = False) -> DatasetDict:
        """Return the splits, each with the column `text`; with `whole` all of the training text."""
        words = None if whole else self.max_train_words
        given = {"config_name": self.dataset_config, "text_column": self.text_column, "max_train_words": words}
        return self.first(DatasetDict(read_text(self.dataset, **given)))

    def first(self, texts: Any) -> Any:
        """Return splits with the first `max_test_words` of the test text."""
        if self.max_test_words is not None:
            texts["test"] = Dataset.from_dict({"text": first_words(texts["test"]["text"], self.max_test_words)})
        return texts


@dataclass
class BlockSettings(TextSettings):
    """A text in blocks of equal length."""

    block_size: int = field(default=512, metadata={"help": "Tokens in a row of a batch."})
    vocab_size: int = field(default=4096, metadata={"help": "Tokens of a tokenizer that is trained on the text."})
    max_validation_blocks: int | None = field(default=None, metadata={"help": "Validate on so many blocks only."})
    streaming: bool = field(
        default=False,
        metadata={
            "help": "Read the training text while training: of a folder with a file for each split (Parquet, JSON "
            "lines, text), or of the Hub. It needs max_steps, and a tokenizer that is trained already."
        },
    )

    def load(self, *, whole: bool = False) -> Any:
        """Return the splits as `TextSettings` does, or train as a stream."""
        if not self.streaming:
            return super().load(whole=whole)
        if self.max_train_words is not None:
            raise ValueError(f"max_steps ends a training on a stream; leave out max_train_words={self.max_train_words}")
        parts: Any = datasets.load_dataset(self.dataset, self.dataset_config, streaming=True)
        if lacking := {"train", "validation", "test"} - set(parts):
            raise ValueError(
                f"a stream's end is not known, so that no split can be taken from it, and {self.dataset} lacks "
                f"{', '.join(sorted(lacking))}; give all three, or leave out streaming"
            )
        read = partial(_text_of, column=self.text_column)
        texts = {split: part.map(read).select_columns(["text"]) for split, part in parts.items()}
        held_out = {split: Dataset.from_list(list(texts[split])) for split in ("validation", "test")}
        return {"train": texts["train"], **self.first(held_out)}

    def tokenizer(self, name: str | None, texts: Mapping[Any, Dataset]) -> PreTrainedTokenizerBase:
        """Return the tokenizer of a name or folder; without one, a byte-level one trained on the training text."""
        if name is not None:
            return AutoTokenizer.from_pretrained(name)
        if self.streaming:
            raise ValueError("a tokenizer is trained on a whole text; name a model_name_or_path that has one")
        return train_bpe_tokenizer(texts["train"]["text"], self.vocab_size, self.block_size)

    def blocks(self, texts: Mapping[Any, Dataset], tokenizer: PreTrainedTokenizerBase) -> dict[str, Dataset]:
        """Return the splits as `pack_blocks` makes them."""
        return self.cut({str(split): pack_blocks(text, tokenizer, self.block_size) for split, text in texts.items()})

    def cut(self, splits: dict[str, Dataset]) -> dict[str, Dataset]:
        """Return splits in blocks with `max_validation_blocks` of validation."""
        if (most := self.max_validation_blocks) is not None:
            splits["validation"] = splits["validation"].take(min(most, len(splits["validation"])))
        return splits


@dataclass
class PairSettings:
    """Parallel text with the splits train, validation and test, as `load_pairs` finds it."""

    dataset: str = field(
        default="multi30k",
        metadata={"help": "Pairs by a name of `load_pairs`, folder with two files a split, JSON lines, or of the Hub."},
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a data set on the Hub."})
    source_lang: str = field(default="de", metadata={"help": "Language to translate from."})
    target_lang: str = field(default="en", metadata={"help": "Language to translate to."})
    source_column: str | None = field(default=None, metadata={"help": "Column of the source. None: by its language."})
    target_column: str | None = field(default=None, metadata={"help": "Column of the target. None: by its language."})
    max_train_pairs: int | None = field(default=None, metadata={"help": "Train on the first so many pairs only."})
    max_eval_pairs: int | None = field(default=None, metadata={"help": "Validate and test on the first so many pairs."})
    max_pair_words: int | None = field(default=175, metadata={"help": "Most words a side in training. None: any."})
    max_pair_ratio: float | None = field(default=1.5, metadata={"help": "Of the longer side's words over the other's."})
    vocab_size: int = field(default=10_000, metadata={"help": "Tokens of the tokenizer trained on both languages."})
    max_source_length: int | None = field(default=None, metadata={"help": "Encoder positions. None: the tokenizer's."})
    max_target_length: int | None = field(default=None, metadata={"help": "Decoder positions. None: the tokenizer's."})
    truncate: bool = field(default=False, metadata={"help": "Cut longer texts. Otherwise they are an error."})
    source_prefix: str | None = field(default=None, metadata={"help": "Put before each source, as T5 expects."})

    def load(self) -> DatasetDict:
        """Return the splits with the columns `source` and `target`, train without the pairs that are filtered out."""
        names = ("source_lang", "target_lang", "source_column", "target_column", "max_train_pairs", "max_eval_pairs")
        given: Any = {name: getattr(self, name) for name in names}
        pairs = read_pairs(self.dataset, config_name=self.dataset_config, **given)
        kept, _ = filter_pairs(pairs["train"], max_length=self.max_pair_words, max_ratio=self.max_pair_ratio)
        return DatasetDict({**pairs, "train": kept})

    def tokenizer(self, name: str | None, pairs: Mapping[Any, Dataset]) -> PreTrainedTokenizerBase:
        """Return the tokenizer of a name or folder; without one, a joint one trained on the training pairs."""
        return train_joint_bpe(pairs["train"], self.vocab_size) if name is None else AutoTokenizer.from_pretrained(name)

    def encoded(self, pairs: Mapping[Any, Dataset], tokenizer: PreTrainedTokenizerBase) -> dict[str, Dataset]:
        """Return the splits as `encode_pairs` makes them."""
        names = ("max_source_length", "max_target_length", "truncate", "source_prefix")
        given: Any = {name: getattr(self, name) for name in names}
        return {str(split): encode_pairs(part, tokenizer, **given) for split, part in pairs.items()}
