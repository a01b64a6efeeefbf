"""Settings of a recipe that say which text it reads, and how much of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from datasets import Dataset, DatasetDict
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hf_targets.data.blocks import pack_blocks
from hf_targets.data.corpora import load_corpus
from hf_targets.data.tokenization import train_bpe_tokenizer


@dataclass
class TextSettings:
    """A text with the splits train, validation and test, as `load_corpus` finds it."""

    settings_title: ClassVar[str] = "Text"

    dataset: str = field(
        default="documentation",
        metadata={
            "help": "Corpus (documentation, documentation:topics, ptb, wikitext-2, wikitext-103, text8, lm1b-sample), "
            "text file, folder, or data set on the Hub."
        },
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a data set on the Hub."})
    text_column: str = field(default="text", metadata={"help": "Column of a data set that holds the text."})
    max_train_words: int | None = field(default=None, metadata={"help": "Train on so many words only."})

    def load(self) -> DatasetDict:
        """Return the splits, each with the column `text`.

        Raises:
            ValueError: As `load_corpus` does.
        """
        return load_corpus(
            self.dataset,
            config_name=self.dataset_config,
            text_column=self.text_column,
            max_train_words=self.max_train_words,
        )


@dataclass
class BlockSettings(TextSettings):
    """A text in blocks of equal length."""

    block_size: int = field(default=512, metadata={"help": "Tokens in a row of a batch."})
    max_validation_blocks: int | None = field(
        default=None, metadata={"help": "Validate on so many blocks only; the test text is always whole."}
    )

    def tokenizer_of(self, name: str | None, texts: Mapping[str, Dataset], vocab_size: int) -> PreTrainedTokenizerBase:
        """Return the tokenizer of a name or folder; without one, a byte-level one trained on the training text."""
        if name is not None:
            return AutoTokenizer.from_pretrained(name)
        return train_bpe_tokenizer(texts["train"]["text"], vocab_size, self.block_size)

    def blocks(self, texts: Mapping[str, Dataset], tokenizer: PreTrainedTokenizerBase) -> dict[str, Dataset]:
        """Return the splits as `pack_blocks` makes them."""
        return self.cut({str(split): pack_blocks(text, tokenizer, self.block_size) for split, text in texts.items()})

    def cut(self, splits: dict[str, Dataset]) -> dict[str, Dataset]:
        """Return splits in blocks with `max_validation_blocks` of validation."""
        if (most := self.max_validation_blocks) is not None:
            splits["validation"] = splits["validation"].take(min(most, len(splits["validation"])))
        return splits
