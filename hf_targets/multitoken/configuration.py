"""The configurations of language models with heads: causal, of encoder and decoder, and masked."""

from dataclasses import field, fields
from typing import ClassVar, Literal

from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig

from hf_targets.backbones.configuration import (
    AnswersForBackbone,
    NamesItsPackage,
    SubConfigSpec,
    check_fields,
    check_ranges,
)
from hf_targets.maths.ensemble import check_ensemble_weight
from hf_targets.multitoken.heads import HEADS

Target = Literal["difference", "embedding"]


class MultiTokenConfig(NamesItsPackage, AnswersForBackbone, PreTrainedConfig):
    """Configuration of `MultiTokenForCausalLM`: the backbone's configuration, and the fields of the heads.

    Raises:
        ValueError: If a field is outside the range that its help text gives.
    Source: Heo et al., "Diverse Target Representations for Language Models with Word Difference Representations",
        sections 3.1 to 3.3; `reversed_differences` from its earlier version, below equation (8).
    """

    model_type = "multitoken"
    keys_to_ignore_at_inference = [  # noqa: RUF012, Trainer adds a list to it
        "past_key_values",
        "loss_parts",
        "hidden_states",
        "attentions",
    ]
    sub_configs_defaults = {  # noqa: RUF012, the base class declares it
        "backbone": SubConfigSpec(config_class=AutoConfig, model_type="gpt_neo")
    }

    backbone: dict | PreTrainedConfig | None = field(
        default=None, metadata={"help": "Configuration of the wrapped model; None: GPT-Neo's default."}
    )
    ngram_size: int = field(
        default=4, metadata={"help": "N: tokens predicted at each position, including the next one; 2 or more."}
    )
    target: Target = field(
        default="difference",
        metadata={"help": '"difference": word difference representations; "embedding": the simple N-gram.'},
    )
    reversed_differences: bool = field(
        default=False,
        metadata={
            "help": "Whether word differences are subtracted in the opposite direction, earlier minus later. This "
            'changes only the sign that odd heads learn: a linear last layer absorbs it, as those of "mlp" and '
            '"conditional" do; a "medusa" head, which adds its input, does not.'
        },
    )
    loss_weight: float = field(
        default=0.1, metadata={"help": "Alpha, the weight of the mean of the heads' losses, 0 or more; 0.1 in table 9."}
    )
    ensemble_weight: float | None = field(
        default=None,
        metadata={"help": "Lambda in [0, 1], the share of the heads' earlier predictions in the logits; None: 0."},
    )
    head: str = field(
        default="mlp",
        metadata={
            "help": '"mlp": two linear layers with ReLU; "medusa": a residual SiLU block; "conditional": an MLP that '
            'also reads the conjugate, so that a word difference depends on the tokens before it; "mtp": a decoder '
            "layer of the backbone's class, as DeepSeek-V3 has it, for causal models. Or a registered head."
        },
    )
    head_bias: bool = field(default=True, metadata={"help": "Whether the linear layers of the heads have a bias."})
    residual_heads: bool = field(
        default=False,
        metadata={
            "help": "Whether a head adds to the hidden state, and begins at 0, so that it first predicts what the "
            "model does of the next token; conjugates count by factors that begin at 0. `from_base` chooses it for a "
            "trained model. False: the paper's heads."
        },
    )
    separate_output_heads: bool = field(
        default=False,
        metadata={
            "help": "Whether each head has its own output matrix, as in Medusa's published checkpoints, instead of "
            "sharing the model's."
        },
    )
    draft_vocab_size: int | None = field(
        default=None,
        metadata={
            "help": "Tokens among which the heads choose their drafts, where the output matrix is large; None: all."
        },
    )
    output_scale: float = field(
        default=1.0,
        metadata={"help": "Factor between the backbone's last hidden states and its output matrix; found by itself."},
    )
    heads_only: bool = field(
        default=False, metadata={"help": "Whether the checkpoint holds only the heads and the name of the base model."}
    )
    base_model_name_or_path: str | None = field(
        default=None, metadata={"help": "Name or path of the base model, which a checkpoint of only heads loads."}
    )
    base_loading: dict | None = field(
        default=None,
        metadata={"help": "Arguments that load the same base model again, such as `gguf_file`; filled in by itself."},
    )

    least_ngram_size: ClassVar[int] = 2
    takes_mtp: ClassVar[bool] = True

    def __post_init__(self, **kwargs) -> None:
        check_fields(self)
        check_ranges(self, {"ngram_size": self.least_ngram_size, "loss_weight": 0, "draft_vocab_size": 1})
        kinds = (*HEADS, "mtp") if self.takes_mtp else tuple(HEADS)
        if self.head not in kinds:
            raise ValueError(f"head must be one of {', '.join(map(repr, kinds))}, got {self.head!r}")
        if self.ensemble_weight is not None:
            check_ensemble_weight(self.ensemble_weight)
        own, differences = self.separate_output_heads, self.target == "difference"
        conflicts = {  # each with the reason
            f"head={self.head!r} reads the conjugate of a word difference": self.head in HEADS
            and HEADS[self.head].reads_conjugate
            and not differences,
            "reversed_differences=True subtracts": self.reversed_differences and not differences,
            "separate_output_heads=True has no rows for a conjugate": own and differences,
        }
        for reason, conflict in conflicts.items():
            if conflict:
                raise ValueError(f"{reason}, got target={self.target!r}; change one of the two")
        if own and (self.ensemble_weight or self.draft_vocab_size is not None):
            raise ValueError(
                "ensemble_weight and draft_vocab_size need the output matrix that heads share, got "
                "separate_output_heads=True; leave one of them out"
            )
        super().__post_init__(**kwargs)

    @property
    def num_future_heads(self) -> int:
        """The number of heads: one for each token after the next one."""
        return self.ngram_size - 1

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """Return the text configuration of the backbone, which has the vocabulary, the layers and the cache."""
        assert isinstance(self.backbone, PreTrainedConfig)  # the base class has converted a dict
        return self.backbone.get_text_config(decoder=decoder, encoder=encoder)


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
    takes_mtp = False


class MultiTokenMaskedConfig(MultiTokenConfig):
    """Configuration of `MultiTokenForMaskedLM`: the backbone's configuration, and the fields of the heads.

    Raises:
        ValueError: As `MultiTokenConfig`; or if a field is set that is only for models that write text.
    Source: Heo et al., "N-gram Prediction and Word Difference Representations for Language Modeling", appendix A.3.
    """

    model_type = "multitoken_masked"
    keys_to_ignore_at_inference = [  # noqa: RUF012, Trainer adds a list to it
        "loss_parts",
        "hidden_states",
        "attentions",
    ]
    sub_configs_defaults = {  # noqa: RUF012, the base class declares it
        "backbone": SubConfigSpec(config_class=AutoConfig, model_type="bert")
    }
    least_ngram_size = 1
    takes_mtp = False

    backbone: dict | PreTrainedConfig | None = field(
        default=None, metadata={"help": "Configuration of the wrapped model; None: BERT's default."}
    )
    ngram_size: int = field(
        default=2,
        metadata={"help": "N: levels of differences predicted at a masked position, each by its own head; 1 or more."},
    )
    loss_weight: float = field(
        default=1.0, metadata={"help": "Alpha, the weight of the mean of the heads' losses, 0 or more; 1 in the paper."}
    )
    masked_only: bool = field(
        default=False,
        metadata={
            "help": "Whether differences are made of masked tokens alone: of the n-th masked token that follows in the "
            "row, not of the n-th token. Otherwise the model sees most of the tokens that follow, as in the paper."
        },
    )

    def __post_init__(self, **kwargs) -> None:
        for name in ("ensemble_weight", "draft_vocab_size"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} must be None, got {getattr(self, name)}: a masked model writes no text")
        if self.separate_output_heads:
            raise ValueError("separate_output_heads must be False: heads of a masked model share its output matrix")
        super().__post_init__(**kwargs)

    @property
    def num_future_heads(self) -> int:
        """The number of heads: one for each level."""
        return self.ngram_size


def base_fields(config_class: type[MultiTokenConfig]) -> tuple[str, ...]:
    """Return the fields that a user may choose when putting heads on a base model; others follow from that model."""
    own = [field.name for field in fields(config_class) if "help" in field.metadata]  # pyright: ignore
    return tuple(name for name in own if name not in ("backbone", "output_scale", "heads_only", "base_loading"))
