"""The configuration of a masked language model with heads that predict word differences at masked positions."""

from dataclasses import field

from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec

from hf_targets.multitoken.configuration import MultiTokenConfig

MASKED_FIELDS = (
    "ngram_size",
    "target",
    "reversed_differences",
    "loss_weight",
    "masked_only",
    "head",
    "head_bias",
    "base_model_name_or_path",
)
"""Fields that a user may choose when putting heads on a masked model; the other fields follow from that model."""


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

    backbone: dict | PreTrainedConfig | None = field(
        default=None, metadata={"help": "Configuration of the wrapped model; None: BERT's default."}
    )
    ngram_size: int = field(
        default=2,
        metadata={"help": "N: levels of differences predicted at a masked position, each by its own head; 1 or more."},
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

    def describe(self) -> str:
        """Return a description of a model of this configuration, in one line."""
        what = self.named_differences if self.target == "difference" else "tokens that follow"
        alone = ", of masked tokens alone" if self.masked_only else ""
        return (
            f"A {self.get_text_config().model_type} model with heads that predict {what} at masked positions "
            f"(N = {self.ngram_size}, alpha {self.loss_weight:g}{alone})"
        )
