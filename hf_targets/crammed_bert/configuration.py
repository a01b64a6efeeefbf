"""The configuration of a CrammedBERT."""

from dataclasses import field
from typing import Any, Literal

from transformers.configuration_utils import PreTrainedConfig

from hf_targets.backbones.configuration import NamesItsPackage, check_fields, check_ranges

SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "classifier_size",
    "max_position_embeddings",
)  # fmt: skip
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")


class CrammedBertConfig(NamesItsPackage, PreTrainedConfig):
    """Configuration of `CrammedBertForMaskedLM`; the defaults are the published model, 119,589,889 parameters.

    It was pre-trained without dropout: set `hidden_dropout_prob` and `attention_probs_dropout_prob` to 0 for that.

    Raises:
        ValueError: If a field is outside the range that its help text gives.
    Source: Geiping and Goldstein, "Cramming: Training a Language Model on a Single GPU in One Day", section 4.2;
        JonasGeiping/cramming, its architecture crammed-bert.
    """

    model_type = "crammed_bert"
    keys_to_ignore_at_inference = ["loss_parts", "hidden_states", "attentions"]  # noqa: RUF012, Trainer adds a list

    vocab_size: int = field(default=32768, metadata={"help": "Number of token ids."})
    hidden_size: int = field(default=768, metadata={"help": "Width of embeddings and layers; even."})
    num_hidden_layers: int = field(default=16, metadata={"help": "Number of layers."})
    num_attention_heads: int = field(default=12, metadata={"help": "Attention heads; they divide hidden_size."})
    intermediate_size: int = field(
        default=3072, metadata={"help": "Width of the feed-forward layers before gating, which halves it; even."}
    )
    max_position_embeddings: int = field(
        default=128,
        metadata={"help": "Length of the texts in training; positions are sines, so longer texts can be read, worse."},
    )
    hidden_dropout_prob: float = field(
        default=0.1, metadata={"help": "Dropout of the embeddings and of what each layer adds; in [0, 1)."}
    )
    attention_probs_dropout_prob: float = field(
        default=0.1, metadata={"help": "Dropout of the attention weights; in [0, 1)."}
    )
    classifier_size: int = field(default=1024, metadata={"help": "Width of the layer below a classifier."})
    classifier_dropout: float = field(default=0.1, metadata={"help": "Dropout of that layer; in [0, 1)."})
    classifier_pooling: Literal["mean", "cls"] = field(
        default="mean",
        metadata={"help": '"mean": a classifier reads the mean of all tokens; "cls": the first token.'},
    )
    layer_norm_eps: float = field(default=1e-12, metadata={"help": "Epsilon of the normalisations, above 0."})
    initializer_range: float = field(default=0.02, metadata={"help": "Standard deviation of new weights, 0 or more."})
    tie_word_embeddings: bool = field(
        default=True, metadata={"help": "Whether the output matrix is that of the embeddings."}
    )
    bos_token_id: int | None = field(default=None, metadata={"help": "Id of the token that begins a text."})
    eos_token_id: int | None = field(default=None, metadata={"help": "Id of the token that ends a text."})
    pad_token_id: int | None = field(default=0, metadata={"help": "Id of padding."})

    def __post_init__(self, **kwargs: Any) -> None:
        check_fields(self)
        check_ranges(self, {**dict.fromkeys(SIZES, 1), "initializer_range": 0}, DROPOUTS)
        for name in ("hidden_size", "intermediate_size"):
            if getattr(self, name) % 2:
                raise ValueError(f"{name} must be even, as half of it are cosines or gates, got {getattr(self, name)}")
        if self.hidden_size % (heads := self.num_attention_heads):
            raise ValueError(f"num_attention_heads must divide hidden_size={self.hidden_size}, got {heads}")
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(f"pad_token_id must be in [0, {self.vocab_size - 1}] or None, got {self.pad_token_id}")
        if not self.layer_norm_eps > 0:
            raise ValueError(f"layer_norm_eps must be above 0, got {self.layer_norm_eps}")
        super().__post_init__(**kwargs)
