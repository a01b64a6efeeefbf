"""Settings of a recipe that say which parallel text it reads, and how pairs become batches."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from datasets import Dataset, DatasetDict
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hf_targets.data.batches import TokenBatchSampler
from hf_targets.data.pair_encoding import encode_pairs, filter_pairs, pair_lengths
from hf_targets.data.pairs import load_pairs
from hf_targets.data.tokenization import train_joint_bpe


@dataclass
class PairSettings:
    """Parallel text with the splits train, validation and test, as `load_pairs` finds it."""

    settings_title: ClassVar[str] = "Parallel text"

    dataset: str = field(
        default="multi30k",
        metadata={
            "help": "Pairs of texts (multi30k, iwslt14, tatoeba, opus-multidomain:koran, asset, wmt14, wmt18), folder "
            "with two files a split, JSON lines, or data set on the Hub."
        },
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a data set on the Hub."})
    source_lang: str = field(default="de", metadata={"help": "Language to translate from."})
    target_lang: str = field(default="en", metadata={"help": "Language to translate to."})
    source_column: str | None = field(default=None, metadata={"help": "Column of the source. None: by its language."})
    target_column: str | None = field(default=None, metadata={"help": "Column of the target. None: by its language."})
    max_train_pairs: int | None = field(default=None, metadata={"help": "Train on the first so many pairs only."})
    max_eval_pairs: int | None = field(
        default=None, metadata={"help": "Validate on the first so many pairs only, and test likewise."}
    )
    max_pair_words: int | None = field(
        default=175, metadata={"help": "Train on pairs of at most so many words a side only. None: of any length."}
    )
    max_pair_ratio: float | None = field(
        default=1.5,
        metadata={"help": "Train on pairs only whose longer side has at most so many times the words of the other."},
    )

    def load(self) -> DatasetDict:
        """Return the splits with the columns `source` and `target`, train without the pairs that are filtered out.

        Raises:
            ValueError: As `load_pairs` and `filter_pairs` do.
        """
        pairs = load_pairs(
            self.dataset,
            source_lang=self.source_lang,
            target_lang=self.target_lang,
            config_name=self.dataset_config,
            source_column=self.source_column,
            target_column=self.target_column,
            max_train_pairs=self.max_train_pairs,
            max_eval_pairs=self.max_eval_pairs,
        )
        kept, _ = filter_pairs(pairs["train"], max_length=self.max_pair_words, max_ratio=self.max_pair_ratio)
        return DatasetDict({**pairs, "train": kept})


@dataclass
class EncodedPairSettings(PairSettings):
    """Parallel text as token ids, in batches of about as many tokens each."""

    vocab_size: int = field(default=10_000, metadata={"help": "Tokens of the tokenizer trained on both languages."})
    max_source_length: int | None = field(
        default=None, metadata={"help": "Positions of the encoder. None: as the tokenizer says, if it does."}
    )
    max_target_length: int | None = field(
        default=None, metadata={"help": "Positions of the decoder. None: as the tokenizer says, if it does."}
    )
    truncate: bool = field(default=False, metadata={"help": "Cut longer texts. Otherwise they are an error."})
    source_prefix: str | None = field(default=None, metadata={"help": "Put before each source, as T5 expects."})
    batch_tokens: int = field(default=4096, metadata={"help": "Tokens in a batch of one process, with padding."})

    def tokenizer_of(self, name: str | None, pairs: Mapping[str, Dataset]) -> PreTrainedTokenizerBase:
        """Return the tokenizer of a name or folder; without one, a joint one trained on the training pairs."""
        if name is not None:
            return AutoTokenizer.from_pretrained(name)
        return train_joint_bpe(pairs["train"], self.vocab_size)

    def encoded(self, pairs: Mapping[str, Dataset], tokenizer: PreTrainedTokenizerBase) -> dict[str, Dataset]:
        """Return the splits as `encode_pairs` makes them."""
        return {
            str(split): encode_pairs(
                part,
                tokenizer,
                max_source_length=self.max_source_length,
                max_target_length=self.max_target_length,
                truncate=self.truncate,
                source_prefix=self.source_prefix,
            )
            for split, part in pairs.items()
        }

    def batches(self, encoded: Dataset, *, shuffle: bool, seed: int) -> TokenBatchSampler:
        """Return the batches of an encoded split."""
        return TokenBatchSampler(pair_lengths(encoded), self.batch_tokens, shuffle=shuffle, seed=seed)
