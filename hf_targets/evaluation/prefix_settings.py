"""Settings of a program whose models continue the prefixes of a text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from hf_targets.evaluation.continuations import Prefix, PrefixBegin, take_prefixes
from hf_targets.training.text_settings import TextSettings


@dataclass
class PrefixSettings(TextSettings):
    """Which prefixes are continued, and how far."""

    split: Literal["test", "validation"] = field(default="test", metadata={"help": "Text that has the prefixes."})
    prefix_begin: PrefixBegin = field(
        default="rows", metadata={"help": "The first tokens of paragraphs, or from anywhere in the text."}
    )
    num_prefixes: int = field(default=100, metadata={"help": "How many, spread evenly over the text."})
    prefix_tokens: int = field(default=32, metadata={"help": "Tokens of a prefix."})
    new_tokens: int = field(default=128, metadata={"help": "Tokens to generate."})

    def prefixes(self, texts: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> list[Prefix]:
        """Return the prefixes of the split's text, as `take_prefixes` takes them."""
        rows: Any = tokenizer(list(texts[self.split]["text"]), add_special_tokens=False, verbose=False)["input_ids"]
        sizes = {"prefix_tokens": self.prefix_tokens, "new_tokens": self.new_tokens}
        return take_prefixes(rows, self.num_prefixes, begin=self.prefix_begin, **sizes)
