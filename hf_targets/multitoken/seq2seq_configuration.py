"""The configuration of an encoder-decoder model with future-token heads on its decoder."""

from dataclasses import field

from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec

from hf_targets.multitoken.configuration import MultiTokenConfig


class MultiTokenSeq2SeqConfig(MultiTokenConfig):
    """Configuration of `MultiTokenForSeq2SeqLM`: fields as `MultiTokenConfig`, with a backbone of encoder and decoder.

    Raises:
        ValueError: As `MultiTokenConfig`.
    Source: Heo et al., "Diverse Target Representations for Language Models with Word Difference Representations",
        sections 3.1 to 3.3 and 4.3.
    """

    model_type = "multitoken_seq2seq"
    keys_to_ignore_at_inference = [  # noqa: RUF012, Trainer adds a list to it
        "past_key_values",
        "loss_parts",
        "decoder_hidden_states",
        "decoder_attentions",
        "cross_attentions",
        "encoder_last_hidden_state",
        "encoder_hidden_states",
        "encoder_attentions",
    ]
    sub_configs_defaults = {  # noqa: RUF012, the base class declares it
        "backbone": SubConfigSpec(config_class=AutoConfig, model_type="marian")
    }

    backbone: dict | PreTrainedConfig | None = field(
        default=None, metadata={"help": "Configuration of the wrapped model; None: Marian's default."}
    )
    is_encoder_decoder: bool = True
