"""The configuration of a masked diffusion language model."""

from dataclasses import field
from typing import Any, cast, get_args

from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig

from hf_targets.backbones.configuration import NamesItsPackage, SubConfigSpec, check_fields
from hf_targets.curves.configuration import CurveConfig, as_curve_config, curve_fields
from hf_targets.maths.noise import ScheduleName

CAUSAL_FIELDS = ("noise_schedule",)
"""Fields that a user may choose when a causal model becomes a diffusion model, beside the arguments of its method."""

_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


class MdlmConfig(NamesItsPackage, PreTrainedConfig):
    """Configuration of `MdlmForMaskedDiffusion`; the defaults are the published model with 169,627,218 parameters.

    Raises:
        ValueError: If a field is outside the range that its help text gives.
    Source: Sahoo et al., "Simple and Effective Masked Diffusion Language Models"; kuleshov-group/mdlm.
    """

    model_type = "mdlm"
    keys_to_ignore_at_inference = [  # noqa: RUF012, Trainer adds a list to it
        "loss_parts",
        "row_nelbos",
        "num_targets",
        "canvas",
        "timesteps",
        "control_points",
        "curve_probabilities",
        "hidden_states",
        "attentions",
    ]

    sub_configs_defaults = {  # noqa: RUF012, the base class declares it
        "backbone": SubConfigSpec(config_class=AutoConfig, model_type="llama", optional=True)
    }

    backbone: dict | PreTrainedConfig | None = field(
        default=None,
        metadata={
            "help": "Configuration of the causal model whose layers are used, as `from_causal` does; its sizes and ids "
            "are then the model's. None: the layers of the published model."
        },
    )
    shift: bool = field(
        default=False,
        metadata={"help": "Whether the state at i - 1 predicts token i, as in a causal model; needs backbone."},
    )
    annealing_steps: int | None = field(
        default=None,
        metadata={
            "help": "Forward passes in training mode over which attention grows from causal to full; needs backbone. "
            "None: full from the start."
        },
    )
    output_scale: float = field(
        default=1.0,
        metadata={"help": "Factor between a backbone's last hidden states and its output matrix; found by itself."},
    )
    vocab_size: int = field(default=50258, metadata={"help": "Number of token ids, the mask included."})
    hidden_size: int = field(default=768, metadata={"help": "d, the width of the model."})
    num_hidden_layers: int = field(default=12, metadata={"help": "Number of blocks."})
    num_attention_heads: int = field(
        default=12, metadata={"help": "Attention heads of each block; hidden_size must be a multiple of twice this."}
    )
    max_position_embeddings: int = field(
        default=1024,
        metadata={
            "help": "Longest text in tokens that `generate` writes at once; longer ones it writes with a stride. Texts "
            "beyond that can be read, worse if none was so long in training."
        },
    )
    cond_dim: int = field(default=128, metadata={"help": "Width of the time embedding that modulates the blocks."})
    mask_token_id: int | None = field(default=None, metadata={"help": "Id of the mask token; None: the last id."})
    dropout: float = field(
        default=0.1, metadata={"help": "Dropout after attention and after the MLP of each block; in [0, 1)."}
    )
    time_conditioning: bool = field(
        default=False,
        metadata={"help": "Whether the time modulates the blocks; False: sigma = 0, so modulation is constant."},
    )
    noise_schedule: ScheduleName = field(
        default="log_linear", metadata={"help": f"How fast tokens are masked: {', '.join(get_args(ScheduleName))}."}
    )
    curve: dict | CurveConfig | None = field(
        default=None, metadata={"help": "The sentence curve that the model predicts; None: plain MDLM."}
    )
    bos_token_id: int | None = field(default=None, metadata={"help": "Id of a text's begin token, if any."})
    eos_token_id: int | None = field(default=None, metadata={"help": "Id of a text's end token, if any."})
    pad_token_id: int | None = field(default=None, metadata={"help": "Id of the padding token, if any."})
    tie_word_embeddings: bool = field(
        default=False, metadata={"help": "Must be False: the model does not tie them, nor does the published one."}
    )
    use_cache: bool = field(
        default=False, metadata={"help": "Must be False: masked diffusion has no cache. Programs may set it."}
    )

    def __post_init__(self, **kwargs: Any) -> None:
        if "hidden_dim" in kwargs and "n_blocks" in kwargs:
            raise ValueError(
                "this is the configuration of a checkpoint in the published layout (hidden_dim, n_blocks); load it "
                "with MdlmForMaskedDiffusion.from_published"
            )
        check_fields(self)
        if self.backbone is not None:
            self._read_backbone()
        elif self.shift or self.annealing_steps is not None:
            raise ValueError(
                "shift and annealing_steps need the layers of a causal model, got backbone=None; make the model with "
                "MdlmForMaskedDiffusion.from_causal"
            )
        if self.mask_token_id is None:
            self.mask_token_id = self.vocab_size - 1
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(
                f"mask_token_id must be in [0, {self.vocab_size - 1}], got {self.mask_token_id}; vocab_size counts the "
                "tokenizer's mask token too"
            )
        for name in (*_SIZES, "cond_dim", "annealing_steps"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.backbone is None and self.hidden_size % (2 * self.num_attention_heads):
            raise ValueError(
                f"hidden_size must be a multiple of 2 x num_attention_heads, got {self.hidden_size} and "
                f"{self.num_attention_heads}"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        self.curve = as_curve_config(self.curve)  # not a sub-config of Transformers: that can never be None
        for name in ("tie_word_embeddings", "use_cache"):
            if getattr(self, name) and (name == "use_cache" or self.backbone is None):
                raise ValueError(f"{name} must be False, got True; leave it out")
        super().__post_init__(**kwargs)

    def _read_backbone(self) -> None:
        """Take the sizes and ids of the backbone's configuration."""
        backbone, _ = self.sub_configs_defaults["backbone"].create_subconfig("backbone", self.backbone)
        self.backbone, text = backbone, cast(PreTrainedConfig, backbone).get_text_config()
        for name in (*_SIZES, "tie_word_embeddings", *(name for name in _IDS if getattr(self, name) is None)):
            value = getattr(text, name, None)
            if value is None and name in _SIZES:
                raise ValueError(
                    f"a {type(text).__name__} has no {name}; choose a Llama-like, Qwen or GPT-2 model, whose attention "
                    "can see both sides"
                )
            setattr(self, name, value[0] if isinstance(value, list) else value)
        if self.time_conditioning:
            raise ValueError("time_conditioning must be False with a backbone, whose layers have no modulation")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields; of the curve only its own."""
        return curve_fields(super().to_dict())
