"""The configuration of an AWD-LSTM language model."""

from dataclasses import field
from itertools import pairwise
from typing import Any

from transformers.configuration_utils import PreTrainedConfig

from hf_targets.backbones.configuration import NamesItsPackage, check_fields, check_ranges


class AwdLstmConfig(NamesItsPackage, PreTrainedConfig):
    """Configuration of `AwdLstmForCausalLM`; the defaults are the published WikiText-2 model, 33,556,078 parameters.

    With `vocab_size=10000, input_dropout=0.4, hidden_dropout=0.25` it is the published Penn Treebank model, 24,221,600
    parameters.

    Raises:
        ValueError: If a field is outside the range that its help text gives.
    Source: Merity et al., "Regularizing and Optimizing LSTM Language Models", section 5; salesforce/awd-lstm-lm.
    """

    model_type = "awd_lstm"
    keys_to_ignore_at_inference = ["past_key_values", "loss_parts", "hidden_states"]  # noqa: RUF012, Trainer adds to it

    vocab_size: int = field(default=33278, metadata={"help": "Number of token ids."})
    embedding_size: int = field(
        default=400, metadata={"help": "Width of the embeddings, and of the last layer where they are tied."}
    )
    hidden_size: int = field(default=1150, metadata={"help": "Width of the other layers."})
    num_hidden_layers: int = field(default=3, metadata={"help": "Number of LSTM layers."})
    embedding_dropout: float = field(
        default=0.1, metadata={"help": "Share of the vocabulary whose embeddings are 0 in a batch; in [0, 1)."}
    )
    input_dropout: float = field(
        default=0.65, metadata={"help": "Variational dropout of the first layer's input; in [0, 1)."}
    )
    hidden_dropout: float = field(default=0.2, metadata={"help": "Variational dropout between the layers; in [0, 1)."})
    output_dropout: float = field(
        default=0.4, metadata={"help": "Variational dropout of the last layer's output; in [0, 1)."}
    )
    weight_dropout: float = field(
        default=0.5, metadata={"help": "Dropout of the weights from hidden state to hidden state; in [0, 1)."}
    )
    activation_weight: float = field(
        default=2.0, metadata={"help": "Alpha: factor in the loss of the squares of the dropped outputs; 0 or more."}
    )
    temporal_weight: float = field(
        default=1.0,
        metadata={"help": "Beta: factor in the loss of the squared changes of the output in a step; 0 or more."},
    )
    use_cache: bool = field(default=True, metadata={"help": "Whether a call without labels returns its last state."})
    tie_word_embeddings: bool = field(
        default=True, metadata={"help": "Whether the output matrix is that of the embeddings."}
    )
    bos_token_id: int | None = field(default=None, metadata={"help": "Id of the token that begins a text."})
    eos_token_id: int | None = field(default=None, metadata={"help": "Id of the token that ends a text."})
    pad_token_id: int | None = field(default=None, metadata={"help": "Id of padding."})

    def __post_init__(self, **kwargs: Any) -> None:
        check_fields(self)
        sizes = ("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers")
        dropouts = [name for name in type(self).__dataclass_fields__ if name.endswith("_dropout")]
        check_ranges(self, {**dict.fromkeys(sizes, 1), "activation_weight": 0, "temporal_weight": 0}, dropouts)
        super().__post_init__(**kwargs)

    @property
    def layer_sizes(self) -> list[tuple[int, int]]:
        """The width that each layer reads, and the one that it writes."""
        last = self.embedding_size if self.tie_word_embeddings else self.hidden_size
        widths = [self.embedding_size, *[self.hidden_size] * (self.num_hidden_layers - 1), last]
        return list(pairwise(widths))
