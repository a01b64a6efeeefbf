"""The configuration of a language model with future-token heads."""

from dataclasses import field
from typing import Literal

from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec

from hf_targets.backbones.configuration_fields import check_fields
from hf_targets.backbones.package_import import NamesItsPackage
from hf_targets.backbones.wrapper_configuration import AnswersForBackbone
from hf_targets.maths.ensemble import check_ensemble_weight
from hf_targets.multitoken.head_kinds import HEADS

BASE_FIELDS = (
    "ngram_size",
    "target",
    "loss_weight",
    "ensemble_weight",
    "head",
    "head_bias",
    "separate_output_heads",
    "base_model_name_or_path",
)
"""What a user chooses when putting heads on a base model; the other fields follow from that model."""

Target = Literal["difference", "embedding"]


class MultiTokenConfig(NamesItsPackage, AnswersForBackbone, PreTrainedConfig):
    """Configuration of `MultiTokenForCausalLM`: a backbone's own configuration, and the heads put on it.

    Raises:
        ValueError: If a field is outside the range that its help text gives.
    Source: Heo et al., "Diverse Target Representations for Language Models with Word Difference Representations",
        sections 3.1 to 3.3.
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
        default=None, metadata={"help": "Configuration of the wrapped model; GPT-Neo's default without one."}
    )
    ngram_size: int = field(
        default=4, metadata={"help": "N: tokens predicted from each position, the next one included; 2 or more."}
    )
    target: Target = field(
        default="difference",
        metadata={"help": '"difference": word difference representations; "embedding": the simple N-gram.'},
    )
    loss_weight: float = field(
        default=0.1, metadata={"help": "Alpha, the weight of the heads' losses together, 0 or more; .1 in table 9."}
    )
    ensemble_weight: float | None = field(
        default=None,
        metadata={"help": "Lambda in [0, 1]: share of the heads' earlier predictions in the logits; None: none."},
    )
    head: str = field(
        default="mlp",
        metadata={
            "help": '"mlp": two linear layers with ReLU; "medusa": a residual SiLU block; "conditional": an MLP that '
            "also reads the conjugate, so that a word difference depends on the tokens before it. Or a registered one."
        },
    )
    head_bias: bool = field(default=True, metadata={"help": "Whether the linear layers of the heads have a bias."})
    separate_output_heads: bool = field(
        default=False,
        metadata={
            "help": "Whether each head has an output matrix of its own instead of sharing the model's; as in Medusa's "
            "published checkpoints."
        },
    )
    heads_only: bool = field(
        default=False, metadata={"help": "Whether the checkpoint holds the heads alone and names its base model."}
    )
    base_model_name_or_path: str | None = field(
        default=None, metadata={"help": "Where the backbone of a checkpoint of heads alone comes from."}
    )

    attribute_map = {"own_outputs": "separate_output_heads"}  # noqa: RUF012, the base class declares it

    def __post_init__(self, **kwargs) -> None:
        if "own_outputs" in kwargs:  # what checkpoints of before call it
            self.separate_output_heads = kwargs.pop("own_outputs")
        check_fields(self)
        if self.ngram_size < 2:
            raise ValueError(
                f"ngram_size (N) counts the next token too and must be 2 or more, got {self.ngram_size}; "
                "for a model without heads use the backbone itself"
            )
        if self.head not in HEADS:
            raise ValueError(f"head must be one of {', '.join(map(repr, HEADS))}, got {self.head!r}")
        if HEADS[self.head].reads_conjugate and self.target != "difference":
            raise ValueError(
                f'head="{self.head}" reads the conjugate of a word difference, and target is {self.target!r}; choose '
                'target="difference", or another head'
            )
        if not self.loss_weight >= 0:  # not a number either
            raise ValueError(f"loss_weight (alpha) must be 0 or more, got {self.loss_weight}")
        if self.ensemble_weight is not None:
            check_ensemble_weight(self.ensemble_weight)
        if self.separate_output_heads and self.target == "difference":
            raise ValueError(
                'separate_output_heads=True needs target="embedding", got target="difference": a word difference is '
                "completed by rows of the model's output matrix and must be read by that same matrix; change either"
            )
        if self.separate_output_heads and self.ensemble_weight:
            raise ValueError(
                f"separate_output_heads=True needs ensemble_weight=None, got {self.ensemble_weight}: the ensemble "
                "mixes predictions before the one output matrix that they then must share; change either of them"
            )
        super().__post_init__(**kwargs)

    def describe(self) -> str:
        """Return what a model of this configuration is, in a line."""
        how = "as word differences" if self.target == "difference" else "directly"
        return (
            f"A {self.get_text_config().model_type} model with heads that predict the tokens after the next one, {how} "
            f"(N = {self.ngram_size}, alpha {self.loss_weight:g})"
        )

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """Return the backbone's configuration: vocabulary, layers and cache are the backbone's."""
        assert isinstance(self.backbone, PreTrainedConfig)  # made one when the configuration was
        return self.backbone.get_text_config(decoder=decoder, encoder=encoder)
