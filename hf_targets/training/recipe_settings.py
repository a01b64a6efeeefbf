"""Settings that several recipes share, each described once."""

import inspect
import re
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar

from transformers import GPT2Config, PreTrainedModel

from hf_targets.training.lora import add_lora
from hf_targets.training.seeds import SeedSettings


def field_of(kind: type, name: str, default: Any = MISSING, *, note: str = "") -> Any:
    """Return the field `name` of a settings class with its help, and its default or another.

    Args:
        kind: A dataclass, or a class whose docstring describes `name` among its Args; then give a default.
        note: Put behind the help.

    >>> @dataclass
    ... class Text:
    ...     size: int = field(default=3, metadata={"help": "Tokens."})
    >>> @dataclass
    ... class Longer(Text):
    ...     size: int = field_of(Text, "size", 8)
    >>> fields(Longer)[0].metadata["help"], Longer().size
    ('Tokens.', 8)
    """
    told = {"help": " ".join(filter(None, [help_of(kind, name), note]))}
    if default is MISSING:
        default = next(entry.default for entry in fields(kind) if entry.name == name)
    return field(default=default, metadata=told)


def help_of(kind: type, name: str) -> str:
    """Return the help text of a dataclass field, or what the Args of a class's docstring say of an argument."""
    if is_dataclass(kind):
        return next(entry for entry in fields(kind) if entry.name == name).metadata["help"]
    found = re.search(rf"^    {name}: (.*?)(?=^    \w|^\w)", inspect.getdoc(kind) or "", re.MULTILINE | re.DOTALL)
    return "" if found is None else " ".join(found[1].replace("`", "").split())  # python -OO has no docstrings


@dataclass
class ExperimentSettings(SeedSettings):
    """What becomes of the output folder, and what the cards of its models say."""

    settings_title: ClassVar[str] = "Experiment"

    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Replace what an older experiment wrote into output_dir."}
    )
    license: str | None = field(
        default=None, metadata={"help": "Licence of the models, for their cards. None: the base model's, if known."}
    )
    language: str | None = field(default=None, metadata={"help": "Language of the text, such as en, for the cards."})

    def stated(self) -> dict[str, str | None]:
        """Return what `CardFacts` takes of these."""
        return {"license": self.license, "language": self.language}


@dataclass
class ComparisonSettings(ExperimentSettings):
    """Models trained side by side."""

    patience: int | None = field(
        default=None,
        metadata={"help": "Evaluations without a lower validation perplexity before a training stops early."},
    )

    def plan(self) -> dict[str, Any]:
        """Return what `train_runs` takes of these, and all settings for its record."""
        return {"seeds": self.seeds, "patience": self.patience, "settings": asdict(self)}


@dataclass
class ModelSizeSettings:
    """The size of a model that is made anew."""

    settings_title: ClassVar[str] = "New model"

    hidden_size: int = field(default=128, metadata={"help": "Width of a new model."})
    num_layers: int = field(default=4, metadata={"help": "Layers of a new model."})
    num_heads: int = field(default=4, metadata={"help": "Attention heads of a new model."})
    dropout: float = field(default=0.1, metadata={"help": "Dropout of a new model, in [0, 1)."})

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_layers", "num_heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size must be a multiple of num_heads, got {self.hidden_size} and {self.num_heads}"
            )
        if not 0 <= (self.dropout or 0.0) < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")

    def gpt2_config(self, *, vocab_size: int, num_positions: int, **fields: Any) -> GPT2Config:
        """Return the configuration of a GPT-2 of this size; other fields, such as `n_inner`, are given by name."""
        return GPT2Config(
            vocab_size=vocab_size,
            n_positions=num_positions,
            n_embd=self.hidden_size,
            n_layer=self.num_layers,
            n_head=self.num_heads,
            resid_pdrop=self.dropout,
            embd_pdrop=self.dropout,
            attn_pdrop=self.dropout,
            **{"bos_token_id": None, "eos_token_id": None, **fields},
        )


@dataclass
class NewModelSettings(ModelSizeSettings):
    """A model that is made anew, with a tokenizer trained on the text."""

    vocab_size: int = field(default=4096, metadata={"help": "Tokens of the tokenizer trained for a new model."})


@dataclass
class LoraSettings:
    """LoRA on the backbone, if a rank is given."""

    settings_title: ClassVar[str] = "LoRA"

    lora_rank: int | None = field(default=None, metadata={"help": "LoRA of this rank on the backbone. None: no LoRA."})
    lora_alpha: int = field(default=8, metadata={"help": "The scale of LoRA is this over the rank."})
    lora_dropout: float = field(default=0.0, metadata={"help": "Dropout before LoRA's adapters, in [0, 1)."})

    def with_lora(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return the model under peft, or as it is without a rank."""
        if self.lora_rank is None:
            return model
        return add_lora(model, self.lora_rank, alpha=self.lora_alpha, dropout=self.lora_dropout)

    def merged(self, model: Any) -> Any:
        """Return the model with its adapters merged into its weights."""
        return model if self.lora_rank is None else model.merge_and_unload()
