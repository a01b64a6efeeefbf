"""The configuration of a Tensorized Transformer."""

from dataclasses import field
from typing import Any

from transformers.configuration_utils import PreTrainedConfig

from hf_targets.backbones.configuration import NamesItsPackage, check_fields, check_ranges

SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "intermediate_size")


class TensorizedTransformerConfig(NamesItsPackage, PreTrainedConfig):
    """Configuration of `TensorizedTransformerForCausalLM`; the defaults are the published Penn Treebank model.

    It has 6,715,252 parameters. With `vocab_size=267735, num_hidden_layers=6, segment_length=80` it is the published
    WikiText-103 model without its adaptive softmax.

    Raises:
        ValueError: If a field is outside the range that its help text gives.
    Source: Ma et al., "A Tensorized Transformer for Language Modeling"; szhangtju/The-compression-of-Transformer.
    """

    model_type = "tensorized_transformer"
    keys_to_ignore_at_inference = ["past_key_values", "loss_parts", "hidden_states"]  # noqa: RUF012, Trainer adds to it
    attribute_map = {"sliding_window": "segment_length"}  # noqa: RUF012, caches of Transformers read this name

    vocab_size: int = field(default=10000, metadata={"help": "Number of token ids."})
    hidden_size: int = field(default=256, metadata={"help": "Width of the layers and the embeddings, d."})
    num_hidden_layers: int = field(default=3, metadata={"help": "Number of layers."})
    num_attention_heads: int = field(
        default=1,
        metadata={"help": "Number of core tensors of a layer, over which its attention is a mean; the paper has 2."},
    )
    head_dim: int = field(
        default=40, metadata={"help": "Width of queries, keys and values, R, which all core tensors share."}
    )
    intermediate_size: int = field(default=2100, metadata={"help": "Width inside the feed-forward layers."})
    segment_length: int = field(
        default=32,
        metadata={
            "help": "S: each layer reads the last S positions, and its output matrix has S x S rows; at least 2. With "
            "paper_leaky a text is read in segments of S."
        },
    )
    dropout: float = field(
        default=0.1,
        metadata={"help": "Dropout of embeddings, positions, the outputs of attention and feed-forward; in [0, 1)."},
    )
    paper_leaky: bool = field(
        default=False,
        metadata={
            "help": "Whether attention is as published: every position of a segment reads all of the segment, later "
            "positions too. Such a model predicts tokens that it has read: it cannot generate, and its perplexities "
            "are not comparable with those of causal models."
        },
    )
    initializer_range: float = field(default=0.02, metadata={"help": "Standard deviation of new weights, 0 or more."})
    use_cache: bool = field(
        default=True, metadata={"help": "Whether a call without labels returns the last S - 1 keys and values."}
    )
    tie_word_embeddings: bool = field(
        default=True, metadata={"help": "Whether the output matrix is that of the embeddings."}
    )
    bos_token_id: int | None = field(default=None, metadata={"help": "Id of the token that begins a text."})
    eos_token_id: int | None = field(default=None, metadata={"help": "Id of the token that ends a text."})
    pad_token_id: int | None = field(default=None, metadata={"help": "Id of padding."})

    def __post_init__(self, **kwargs: Any) -> None:
        check_fields(self)
        least = {**dict.fromkeys(SIZES, 1), "segment_length": 2, "initializer_range": 0}
        check_ranges(self, least, ["dropout"])
        if self.hidden_size % 2:
            raise ValueError(f"hidden_size must be even, as positions are sines and cosines, got {self.hidden_size}")
        super().__post_init__(**kwargs)

    @property
    def text_multiple(self) -> int:
        """The length of a text must be a multiple of this."""
        return self.segment_length if self.paper_leaky else 1
