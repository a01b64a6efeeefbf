"""The configuration of a masked diffusion language model."""

from dataclasses import field
from typing import Any, get_args

from transformers.configuration_utils import PreTrainedConfig

from hf_targets.backbones.configuration_fields import check_fields
from hf_targets.backbones.package_import import NamesItsPackage
from hf_targets.curves.configuration import CurveConfig
from hf_targets.maths.noise import NoiseSchedule, ScheduleName


class MdlmConfig(NamesItsPackage, PreTrainedConfig):
    """Configuration of `MdlmForMaskedDiffusion`; the defaults are the published model's of 169,627,218 parameters.

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

    vocab_size: int = field(default=50258, metadata={"help": "Token ids, that of the mask among them."})
    hidden_size: int = field(default=768, metadata={"help": "d."})
    num_hidden_layers: int = field(default=12, metadata={"help": "Blocks."})
    num_attention_heads: int = field(default=12, metadata={"help": "Attention heads of each; they divide hidden_size."})
    max_position_embeddings: int = field(
        default=1024, metadata={"help": "Tokens that the model sees at once; `generate` goes on beyond with a stride."}
    )
    cond_dim: int = field(default=128, metadata={"help": "Width of the time embedding that modulates the blocks."})
    mask_token_id: int | None = field(default=None, metadata={"help": "Id of the mask; None: the last one."})
    dropout: float = field(default=0.1, metadata={"help": "After attention and after the MLP of each block; [0, 1)."})
    time_conditioning: bool = field(
        default=False,
        metadata={"help": "Whether blocks see the time; False: they see sigma = 0, a constant modulation."},
    )
    noise_schedule: ScheduleName = field(
        default="log_linear", metadata={"help": f"How fast tokens are masked: {', '.join(get_args(ScheduleName))}."}
    )
    sigma_min: float | None = field(
        default=None, metadata={"help": "Total noise at time 0, of a linear or geometric schedule; None: its default."}
    )
    sigma_max: float | None = field(
        default=None, metadata={"help": "Total noise at time 1, of a linear or geometric schedule; None: its default."}
    )
    num_diffusion_steps: int | None = field(
        default=None, metadata={"help": "T of the discrete-time bound; None: continuous time."}
    )
    folded: bool = field(
        default=False, metadata={"help": "Whether the constant modulation is inside its neighbours' weights."}
    )
    curve: dict | CurveConfig | None = field(
        default=None, metadata={"help": "The sentence curve that is predicted; None: plain MDLM."}
    )
    bos_token_id: int | None = field(default=None, metadata={"help": "First token of a text, if it has one."})
    eos_token_id: int | None = field(default=None, metadata={"help": "Last token of a text, if it has one."})
    pad_token_id: int | None = field(default=None, metadata={"help": "Padding, if there is any."})
    tie_word_embeddings: bool = field(default=False, metadata={"help": "The published model does not."})
    use_cache: bool = field(default=False, metadata={"help": "False, as programs may set it: there is no cache."})

    def __post_init__(self, **kwargs: Any) -> None:
        if "hidden_dim" in kwargs and "n_blocks" in kwargs:
            raise ValueError(
                "this is the configuration of a checkpoint in the published layout (hidden_dim, n_blocks); load it "
                "with MdlmForMaskedDiffusion.from_published"
            )
        check_fields(self)
        if self.mask_token_id is None:
            self.mask_token_id = self.vocab_size - 1
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(
                f"mask_token_id must be in [0, {self.vocab_size - 1}] with vocab_size={self.vocab_size}, got "
                f"{self.mask_token_id}; a tokenizer's mask token counts in vocab_size"
            )
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings", "cond_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.hidden_size % (2 * self.num_attention_heads):
            raise ValueError(
                f"hidden_size must be a multiple of 2 x num_attention_heads, as rotary positions turn pairs, got "
                f"{self.hidden_size} and {self.num_attention_heads}"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        NoiseSchedule(self.noise_schedule, self.sigma_min, self.sigma_max)  # which checks the three
        if self.num_diffusion_steps is not None and self.num_diffusion_steps < 1:
            raise ValueError(
                f"num_diffusion_steps must be at least 1, got {self.num_diffusion_steps}; None is continuous time"
            )
        self.curve = as_curve_config(self.curve)  # no sub-config of Transformers' kind, which is never None
        if self.tie_word_embeddings:
            raise ValueError("tie_word_embeddings must be False: the output matrix starts at zero, the embedding not")
        if self.use_cache:
            raise ValueError("use_cache must be False: each step of masked diffusion reads all of the canvas anew")
        if self.folded and self.time_conditioning:
            raise ValueError("only a constant modulation can be folded: folded needs time_conditioning=False")
        super().__post_init__(**kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, and of the curve its own alone: what else Transformers adds means nothing there."""
        values = super().to_dict()
        if isinstance(values["curve"], dict):
            own = {"model_type", *CurveConfig.__annotations__}
            values["curve"] = {name: value for name, value in values["curve"].items() if name in own}
        return values


def as_curve_config(curve: dict[str, Any] | CurveConfig | None) -> CurveConfig | None:
    """Return the configuration of a curve, given as such or by its fields.

    Raises:
        ValueError: If it is neither, nor None.
    """
    if curve is None or isinstance(curve, CurveConfig):
        return curve
    if not isinstance(curve, dict):
        raise ValueError(f"curve must be a CurveConfig, a dict of its fields, or None, got {type(curve).__name__}")
    return CurveConfig.from_dict(curve)
