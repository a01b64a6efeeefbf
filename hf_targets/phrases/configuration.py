"""The configuration of a language model with a dynamic vocabulary."""

from dataclasses import field
from typing import Literal

from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig

from hf_targets.backbones.configuration import AnswersForBackbone, NamesItsPackage, SubConfigSpec, check_fields

BASE_FIELDS = (
    "phrase_start",
    "phrase_encoder_kind",
    "phrase_encoder_layers",
    "projection",
    "tie_phrase_embeddings",
    "phrase_loss_weight",
    "token_loss_weight",
    "kl_loss_weight",
    "kl_positions",
)
"""The fields that a user sets in `from_base`. The other fields follow from the base model and the encoder."""

PhraseStart = Literal["encoder", "tokens"]
EncoderKind = Literal["transformer", "mean"]
Projection = Literal["mlp", "linear"]
KlPositions = Literal["token_targets", "all"]


class DynamicVocabConfig(NamesItsPackage, AnswersForBackbone, PreTrainedConfig):
    """Configuration of `DynamicVocabForCausalLM`: of the backbone, of the phrase encoder, and of their losses.

    Raises:
        ValueError: If a field is outside the range that its help text gives.
    Source: Liu et al., "Generation with Dynamic Vocabulary", sections 2.2 to 2.4.
    """

    model_type = "dynamic_vocab"
    keys_to_ignore_at_inference = [  # noqa: RUF012, Trainer concatenates it with a list
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
        default=None, metadata={"help": "Configuration of the wrapped model; None: GPT-2's default."}
    )
    phrase_encoder: dict | PreTrainedConfig | None = field(
        default=None, metadata={"help": "Configuration of the causal Transformer that embeds phrases."}
    )
    phrase_encoder_width: int | None = field(
        default=None, metadata={"help": "Width of the encoder's last hidden states; None: the encoder's hidden_size."}
    )
    tokenizer_fingerprint: str | None = field(
        default=None, metadata={"help": "Fingerprint of the model's tokenizer; None: any tokenizer is accepted."}
    )
    phrase_start: PhraseStart = field(
        default="encoder",
        metadata={
            "help": 'Embeddings of a phrase: "encoder", those of the encoder, as in the paper; "tokens", its tokens\' '
            "own, with a low bias, plus what the encoder adds, 0 at first: the default of `from_base`."
        },
    )
    phrase_encoder_kind: EncoderKind = field(
        default="transformer",
        metadata={
            "help": 'Of what a phrase is encoded: "transformer", its last hidden state, as in the paper; "mean", the '
            "mean of its tokens' embeddings, which costs little."
        },
    )
    phrase_encoder_layers: int | None = field(
        default=None,
        metadata={"help": "Layers of the encoder, the first ones of the model it begins as; 1 or more; None: all."},
    )
    projection: Projection = field(
        default="mlp",
        metadata={"help": 'Projection to the backbone: "mlp" (section 2.2), or one layer, "linear" (figure 2).'},
    )
    tie_phrase_embeddings: bool = field(
        default=True,
        metadata={
            "help": "Whether a phrase has one embedding for input and output, as in the paper; False: one projection "
            "for each, for backbones whose input and output embeddings are not tied."
        },
    )
    phrase_loss_weight: float = field(
        default=1.0, metadata={"help": "Weight of L_p, the loss of the text with phrases; 0 or more."}
    )
    token_loss_weight: float = field(
        default=1.0, metadata={"help": "Weight of L_t, the loss of the text in tokens; 0 or more."}
    )
    kl_loss_weight: float = field(
        default=1.0, metadata={"help": "Weight of L_kl, the divergence between both distributions; 0 or more."}
    )
    kl_positions: KlPositions = field(
        default="token_targets",
        metadata={
            "help": 'Positions of L_kl: "token_targets", all that predict a token; "all", as in the paper, also those '
            "that predict a phrase, compared with the position that predicts the phrase's last token."
        },
    )

    def __post_init__(self, **kwargs) -> None:
        check_fields(self)
        for name in ("phrase_loss_weight", "token_loss_weight", "kl_loss_weight"):
            if not getattr(self, name) >= 0:  # also refuses NaN
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")
        layers, kind = self.phrase_encoder_layers, self.phrase_encoder_kind
        if layers is not None and (layers < 1 or kind == "mean"):
            raise ValueError(
                f"phrase_encoder_layers must be 1 or more, of a Transformer, got {layers} with phrase_encoder_kind="
                f"{kind!r}; leave out one of them"
            )
        super().__post_init__(**kwargs)
        if self.phrase_encoder_kind == "mean":
            self.phrase_encoder = None  # which the base class would fill with its default

    @property
    def reads_tokens(self) -> bool:
        """Whether the embeddings of phrases are made of those of tokens."""
        return self.phrase_start == "tokens" or self.phrase_encoder_kind == "mean"

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """Return the backbone's configuration, which describes the static vocabulary, the layers and the cache."""
        assert isinstance(self.backbone, PreTrainedConfig)  # converted from a dict by the base class
        return self.backbone.get_text_config(decoder=decoder, encoder=encoder)
