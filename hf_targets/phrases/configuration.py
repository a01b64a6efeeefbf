"""The configuration of a language model with a dynamic vocabulary."""

from dataclasses import field
from typing import Literal

from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec

from hf_targets.backbones.configuration_fields import check_fields
from hf_targets.backbones.package_import import NamesItsPackage
from hf_targets.backbones.wrapper_configuration import AnswersForBackbone

BASE_FIELDS = (
    "projection",
    "tie_phrase_embeddings",
    "phrase_loss_weight",
    "token_loss_weight",
    "kl_loss_weight",
    "kl_support",
    "kl_positions",
    "kl_direction",
    "kl_divisor",
    "kl_detach_teacher",
)
"""What a user chooses when giving a base model a phrase encoder; the other fields follow from the two models."""

Projection = Literal["mlp", "linear"]
KlSupport = Literal["tokens", "first_token"]
KlPositions = Literal["token_targets", "all"]
KlDirection = Literal["forward", "reverse"]
KlDivisor = Literal["steps", "tokens"]


class DynamicVocabConfig(NamesItsPackage, AnswersForBackbone, PreTrainedConfig):
    """Configuration of `DynamicVocabForCausalLM`: a backbone's own, its phrase encoder's, and how both are trained.

    Raises:
        ValueError: If a field is outside the range that its help text gives.
    Source: Liu et al., "Generation with Dynamic Vocabulary", sections 2.2 to 2.4.
    """

    model_type = "dynamic_vocab"
    keys_to_ignore_at_inference = [  # noqa: RUF012, Trainer adds a list to it
        "past_key_values",
        "loss_parts",
        "row_losses",
        "hidden_states",
        "attentions",
    ]
    sub_configs_defaults = {  # noqa: RUF012, the base class declares it
        "backbone": SubConfigSpec(config_class=AutoConfig, model_type="gpt2"),
        "phrase_encoder": SubConfigSpec(config_class=AutoConfig, model_type="gpt2"),
    }

    backbone: dict | PreTrainedConfig | None = field(
        default=None, metadata={"help": "Configuration of the wrapped model; GPT-2's default without one."}
    )
    phrase_encoder: dict | PreTrainedConfig | None = field(
        default=None, metadata={"help": "Configuration of the causal Transformer that embeds phrases."}
    )
    phrase_encoder_width: int | None = field(
        default=None, metadata={"help": "Width of the encoder's last hidden states; None: its hidden_size."}
    )
    tokenizer_fingerprint: str | None = field(
        default=None, metadata={"help": "Of the tokenizer whose ids the model reads; None takes any vocabulary's."}
    )
    projection: Projection = field(
        default="mlp",
        metadata={"help": 'From the encoder to the backbone: "mlp" (section 2.2) or one layer, "linear" (figure 2).'},
    )
    tie_phrase_embeddings: bool = field(
        default=True,
        metadata={
            "help": "Whether a phrase has one embedding for input and output, as in the paper; False: a projection for "
            "each, for backbones whose own two matrices are not tied."
        },
    )
    phrase_loss_weight: float = field(
        default=1.0, metadata={"help": "Weight of L_p, the text with phrases over tokens and phrases; 0 or more."}
    )
    token_loss_weight: float = field(
        default=1.0, metadata={"help": "Weight of L_t, the text in tokens over tokens; 0 or more."}
    )
    kl_loss_weight: float = field(
        default=1.0, metadata={"help": "Weight of L_kl, which keeps the two near each other; 0 or more."}
    )
    kl_support: KlSupport = field(
        default="tokens",
        metadata={
            "help": 'What L_kl compares: "tokens", both distributions over tokens alone, renormalised; "first_token", '
            "each phrase's probability given to its first token."
        },
    )
    kl_positions: KlPositions = field(
        default="token_targets",
        metadata={
            "help": 'Where: "token_targets", wherever the next thing is a token, after a phrase too; "all", the '
            "paper's sum, in which a phrase's position is compared with that of its last token."
        },
    )
    kl_direction: KlDirection = field(
        default="forward", metadata={"help": '"forward": KL(with phrases || tokens alone), the paper\'s; "reverse".'}
    )
    kl_divisor: KlDivisor = field(
        default="steps",
        metadata={
            "help": 'What L_kl of a text is divided by: "steps", the paper\'s m, its tokens and phrases; "tokens", its '
            "tokens, as the other two parts are."
        },
    )
    kl_detach_teacher: bool = field(
        default=True, metadata={"help": "Whether L_kl leaves the distribution of the text in tokens as it is."}
    )

    def __post_init__(self, **kwargs) -> None:
        check_fields(self)
        for name in ("phrase_loss_weight", "token_loss_weight", "kl_loss_weight"):
            if not getattr(self, name) >= 0:  # not a number either
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")
        super().__post_init__(**kwargs)

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """Return the backbone's configuration: static vocabulary, layers and cache are the backbone's."""
        assert isinstance(self.backbone, PreTrainedConfig)  # made one when the configuration was
        return self.backbone.get_text_config(decoder=decoder, encoder=encoder)
