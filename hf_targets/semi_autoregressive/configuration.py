"""The configuration of a language model that predicts blocks of N words."""

import math
from dataclasses import field
from typing import Any

from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig

from hf_targets.backbones.configuration import AnswersForBackbone, NamesItsPackage, SubConfigSpec, check_fields
from hf_targets.curves.configuration import CurveConfig, as_curve_config, curve_fields

BASE_FIELDS = ("ngram_size", "curve", "residual")
"""Fields that a user may choose when putting a block decoder on a base model."""


class SemiAutoregressiveConfig(NamesItsPackage, AnswersForBackbone, PreTrainedConfig):
    """Configuration of `SemiAutoregressiveForCausalLM`: the backbone's, and what its LSTM predicts.

    Raises:
        ValueError: If a field is outside the range that its help text gives.
    Source: Heo and Choi, "Sentence Curve Language Models", appendix B.3.
    """

    model_type = "semi_autoregressive"
    keys_to_ignore_at_inference = [  # noqa: RUF012, Trainer adds a list to it
        "past_key_values", "loss_parts", "word_nlls", "word_counts", "block_logits", "curve_probabilities",
        "last_hidden_state", "hidden_states", "attentions",
    ]  # fmt: skip
    sub_configs_defaults = {  # noqa: RUF012, the base class declares it
        "backbone": SubConfigSpec(config_class=AutoConfig, model_type="gpt2")
    }

    backbone: dict | PreTrainedConfig | None = field(
        default=None, metadata={"help": "Configuration of the wrapped model; None: GPT-2's default."}
    )
    ngram_size: int = field(default=3, metadata={"help": "N: words that are predicted at each position; 2 or more."})
    curve: dict | CurveConfig | None = field(
        default=None,
        metadata={
            "help": "The sentence curve of the N words whose control points the LSTM predicts; None: the LSTM predicts "
            "the words' embeddings."
        },
    )
    residual: bool = field(
        default=False,
        metadata={
            "help": "Whether the LSTM adds to the backbone's last hidden state, at first nothing, so that a new "
            "decoder gives each word the backbone's own prediction; False: as in the paper."
        },
    )
    output_scale: float = field(
        default=1.0,
        metadata={"help": "Factor between the backbone's last hidden states and its output matrix; found by itself."},
    )

    def __post_init__(self, **kwargs: Any) -> None:
        check_fields(self)
        if self.ngram_size < 2:
            raise ValueError(f"ngram_size (N) must be 2 or more, got {self.ngram_size}; for one word use the backbone")
        if not math.isfinite(self.output_scale) or not self.output_scale:
            raise ValueError(f"output_scale must be finite and not 0, got {self.output_scale}; leave it out")
        self.curve = as_curve_config(self.curve)
        if self.curve is not None:
            if self.curve.place != "input":
                raise ValueError(f'the curve of this model has place="input", got {self.curve.place!r}; leave it out')
            if (num_points := self.curve.num_control_points_for(self.ngram_size)) < self.ngram_size:
                raise ValueError(
                    f"a curve through {self.ngram_size} words needs as many control points or more, got {num_points}; "
                    "raise num_control_points"
                )
        super().__post_init__(**kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields; of the curve only its own."""
        return curve_fields(super().to_dict())

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """Return the text configuration of the backbone, which has the vocabulary, the layers and the cache."""
        assert isinstance(self.backbone, PreTrainedConfig)  # the base class has converted a dict
        return self.backbone.get_text_config(decoder=decoder, encoder=encoder)
