"""The configuration of a Gaussian diffusion model of text that is written for a source."""

from dataclasses import asdict, field
from typing import Any, ClassVar, Literal, cast

from transformers.activations import ACT2FN
from transformers.configuration_utils import PreTrainedConfig

from hf_targets.backbones.configuration import NamesItsPackage, check_fields
from hf_targets.curves.configuration import CurveConfig, as_curve_config, curve_fields
from hf_targets.gaussian_diffusion.future_embeddings import HeadSettings

Preset = Literal["difformer", "dinoiser"]

PRESETS: dict[str, dict[str, Any]] = {
    # zhjgao/difformer, difformer_iwslt_de_en and its scripts
    "difformer": {
        "latent_size": 128,
        "noise_schedule": "sqrt",
        "noise_factor": 4.0,
        "clip_noise": False,
        "self_conditioning": "half",
        "normalize_embeddings": False,
        "word_loss": "anchor",
        "label_smoothing": 0.1,
        "dropout": 0.3,
        "projection": "linear",
        "time_embedding": "sinusoidal",
        "activation_function": "relu",
        "encoder_final_norm": False,
        "length_projection": "linear",
    },
    # yegcjs/DINOISER, IWSLT14
    # Departs: the predictor of lengths is trained with the rest, not after it
    "dinoiser": {
        "latent_size": 16,
        "noise_schedule": "continuous",
        "noise_factor": 1.0,
        "clip_noise": True,
        "self_conditioning": "both",
        "normalize_embeddings": True,
        "word_loss": "rounding",
        "label_smoothing": 0.0,
        "dropout": 0.2,
        "projection": "tanh",
        "time_embedding": "fourier",
        "activation_function": "gelu",
        "encoder_final_norm": True,
        "length_projection": "tanh",
    },
}
"""A field of `DifformerConfig` that is None takes the value of its preset."""

FOURIER_PAIRS = 128
"""Frequencies of the fourier time embedding."""
_BY_PRESET = "None: by the preset."
_LIKE_DROPOUT = "None: 0; with dinoiser, whose layers are torch.nn's, that of dropout."
_LEAST = {
    **dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "latent_size"), 1),
    **dict.fromkeys(("vocab_size", "max_position_embeddings", "num_length_classes", "num_diffusion_steps"), 2),
    "length_loss_weight": 0,
}
_SHARES = ("dropout", "attention_dropout", "activation_dropout", "label_smoothing")


class DifformerConfig(NamesItsPackage, PreTrainedConfig):
    """Configuration of `DifformerForConditionalGeneration`; the defaults are Difformer's for IWSLT14.

    Raises:
        ValueError: If a field is outside the range that its help text gives.
    Source: Gao et al. 2024, "Empowering Diffusion Models on the Embedding Space for Text Generation" (Difformer); Ye et
        al. 2023, "DINOISER"; what differs between them is in `PRESETS`.
    """

    model_type = "difformer"
    keys_to_ignore_at_inference = [  # noqa: RUF012, Trainer adds a list to it
        "loss_parts",
        "row_losses",
        "length_logits",
        "predicted_embeddings",
        "encoder_last_hidden_state",
        "curve_probabilities",
        "encoder_hidden_states",
        "encoder_attentions",
        "decoder_hidden_states",
        "decoder_attentions",
        "cross_attentions",
    ]
    # the layers are Marian's, and read these names
    attribute_map: ClassVar[dict[str, str]] = {
        "d_model": "hidden_size",
        "encoder_attention_heads": "num_attention_heads",
        "decoder_attention_heads": "num_attention_heads",
        "encoder_ffn_dim": "intermediate_size",
        "decoder_ffn_dim": "intermediate_size",
    }

    preset: Preset = field(
        default="difformer", metadata={"help": f"Of the fields that are None: {', '.join(PRESETS)}."}
    )
    vocab_size: int = field(default=10152, metadata={"help": "Number of token ids, of both languages together."})
    source_vocab_size: int | None = field(
        default=None,
        metadata={
            "help": "Number of token ids of a source that has embeddings of its own, of hidden_size; vocab_size is of "
            "texts only then. None: one embedding serves both."
        },
    )
    hidden_size: int = field(default=512, metadata={"help": "Width of encoder and decoder."})
    num_hidden_layers: int = field(default=6, metadata={"help": "Layers of the encoder, and of the decoder."})
    num_attention_heads: int = field(default=4, metadata={"help": "Heads of each layer; a divisor of hidden_size."})
    intermediate_size: int = field(default=1024, metadata={"help": "Width of the feed-forward layers."})
    max_position_embeddings: int = field(default=256, metadata={"help": "Longest source, and longest text, in tokens."})
    dropout: float | None = field(default=None, metadata={"help": f"Dropout, in [0, 1). {_BY_PRESET}"})
    attention_dropout: float | None = field(
        default=None, metadata={"help": f"Dropout of attention weights, in [0, 1). {_LIKE_DROPOUT}"}
    )
    activation_dropout: float | None = field(
        default=None, metadata={"help": f"Dropout within feed-forward layers, in [0, 1). {_LIKE_DROPOUT}"}
    )
    activation_function: str | None = field(default=None, metadata={"help": f"Of the layers. {_BY_PRESET}"})
    latent_size: int | None = field(default=None, metadata={"help": f"Width of the embeddings. {_BY_PRESET}"})
    normalize_embeddings: bool | None = field(
        default=None, metadata={"help": f"Whether embeddings have length sqrt(latent_size). {_BY_PRESET}"}
    )
    projection: Literal["linear", "tanh"] | None = field(
        default=None, metadata={"help": f"Between embeddings and the decoder: linear or tanh. {_BY_PRESET}"}
    )
    time_embedding: Literal["sinusoidal", "fourier"] | None = field(
        default=None, metadata={"help": f"Of the noise that the decoder is told: sinusoidal or fourier. {_BY_PRESET}"}
    )
    time_frequencies: list | None = field(
        default=None,
        metadata={"help": "Of the fourier time embedding, one for each of its pairs. None: quantiles of N(0, 16^2)."},
    )
    encoder_final_norm: bool | None = field(
        default=None,
        metadata={"help": f"Whether the encoder's last layer is followed by one more normalisation. {_BY_PRESET}"},
    )
    noise_schedule: Literal["sqrt", "linear", "cosine", "continuous"] | None = field(
        default=None,
        metadata={
            "help": "sqrt, linear or cosine in num_diffusion_steps steps; continuous: noise of deviation t for t in "
            f"[.001, 1]. {_BY_PRESET}"
        },
    )
    num_diffusion_steps: int = field(default=2000, metadata={"help": "T, the steps of a schedule in steps."})
    noise_factor: float | None = field(
        default=None, metadata={"help": f"F, by which the noise of training is multiplied; above 0. {_BY_PRESET}"}
    )
    clip_noise: bool | None = field(
        default=None,
        metadata={"help": f"Whether to train on noise that reaches neighbouring embeddings only. {_BY_PRESET}"},
    )
    self_conditioning: Literal["half", "both"] | None = field(
        default=None,
        metadata={
            "help": "When the decoder reads its own prediction: half, in half of the training steps; both, in a second "
            f"pass of each, both trained. {_BY_PRESET}"
        },
    )
    word_loss: Literal["anchor", "rounding"] | None = field(
        default=None,
        metadata={"help": f"Cross-entropy of the words: anchor, from the prediction; rounding, from z_0. {_BY_PRESET}"},
    )
    label_smoothing: float | None = field(
        default=None, metadata={"help": f"Of the words' cross-entropy in training, in [0, 1). {_BY_PRESET}"}
    )
    length_loss_weight: float = field(default=0.1, metadata={"help": "Weight of the length's loss, 0 or more."})
    num_length_classes: int = field(
        default=256, metadata={"help": "Differences of length between text and source that there are, half below 0."}
    )
    length_projection: Literal["linear", "tanh"] | None = field(
        default=None,
        metadata={"help": f"From the mean of the encoder's states to the classes: linear or tanh. {_BY_PRESET}"},
    )
    initializer_range: float | None = field(
        default=None, metadata={"help": "Deviation of new weights. None: as the published program of the preset."}
    )
    latent_deviation: float | None = field(
        default=None,
        metadata={
            "help": "Deviation of z_0 in a new model; 1 suits short trainings. None: as the published program of the "
            "preset, .02 sqrt(latent_size) for difformer; 1 with initializer_range."
        },
    )
    curve: dict | CurveConfig | None = field(
        default=None, metadata={"help": "The sentence curve that the model predicts; None: plain Difformer."}
    )
    curve_loss: Literal["embeddings", "control_points"] = field(
        default="embeddings",
        metadata={
            "help": "Where the squared error V of predicted embeddings is taken: there, |V|^2, or in control points, "
            "|V B^+|^2, which needs a curve."
        },
    )
    multitoken: dict | None = field(
        default=None,
        metadata={"help": "Fields of HeadSettings, heads that predict words further on; None: no heads. {}: as usual."},
    )
    pad_token_id: int | None = field(default=1, metadata={"help": "Id of the padding token."})
    bos_token_id: int | None = field(default=None, metadata={"help": "Id of a text's begin token, if any."})
    eos_token_id: int | None = field(default=2, metadata={"help": "Id of a text's end token, if any."})
    is_encoder_decoder: bool = field(default=True, metadata={"help": "Must be True."})
    tie_word_embeddings: bool = field(
        default=True, metadata={"help": "Must be True: what is predicted are embeddings of the output matrix."}
    )
    use_cache: bool = field(default=False, metadata={"help": "Must be False: there is no cache. Programs may set it."})

    def __post_init__(self, **kwargs: Any) -> None:
        check_fields(self)
        for name, value in PRESETS[self.preset].items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        for name in ("attention_dropout", "activation_dropout"):
            if getattr(self, name) is None:
                setattr(self, name, self.dropout if self.preset == "dinoiser" else 0.0)
        for other in PRESETS.keys() - {self.preset}:
            if all(getattr(self, name) == value for name, value in PRESETS[other].items()):  # a new name was given
                raise ValueError(
                    f"preset={self.preset!r} fills fields that are None, and all have the values of {other!r}; make a "
                    "new configuration, or set the fields"
                )
        for name, least in _LEAST.items():
            if not least <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in _SHARES:
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        if self.hidden_size % (2 * self.num_attention_heads):
            raise ValueError(
                f"hidden_size must be a multiple of 2 x num_attention_heads, got {self.hidden_size} and "
                f"{self.num_attention_heads}"
            )
        if self.activation_function not in ACT2FN:
            raise ValueError(
                f"activation_function must be one of Transformers' ACT2FN, got {self.activation_function!r}"
            )
        for name in ("noise_factor", "latent_deviation", "initializer_range"):
            if (value := getattr(self, name)) is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} must be above 0, got {value}")
        if self.clip_noise and self.noise_schedule != "continuous":
            raise ValueError(f"clip_noise needs noise_schedule='continuous', got {self.noise_schedule!r}")
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            value, needed = getattr(self, name), name == "pad_token_id"
            if (value is None and needed) or (value is not None and not 0 <= value < self.vocab_size):
                raise ValueError(
                    f"{name} must be in [0, {self.vocab_size - 1}]{'' if needed else ' or None'}, got {value}"
                )
        if self.source_vocab_size is not None and self.source_vocab_size <= cast(int, self.pad_token_id):
            raise ValueError(
                f"source_vocab_size must be above pad_token_id, {self.pad_token_id}, got {self.source_vocab_size}"
            )
        if self.latent_deviation is not None and self.normalize_embeddings:
            raise ValueError("latent_deviation has no effect on normalised embeddings; leave it out")
        times = self.time_frequencies
        if times is not None and not (
            len(times) == FOURIER_PAIRS and all(isinstance(one, int | float) for one in times)
        ):
            raise ValueError(
                f"time_frequencies must be {FOURIER_PAIRS} numbers, got {len(times)} values: {times[:3]} ..."
            )
        for name, only in (("is_encoder_decoder", True), ("tie_word_embeddings", True), ("use_cache", False)):
            if getattr(self, name) is not only:
                raise ValueError(f"{name} must be {only}, got {getattr(self, name)}; leave it out")
        self.curve = as_curve_config(self.curve)
        if self.curve is not None and self.curve.place != "input":
            raise ValueError(f'the curve of this model has place="input", got {self.curve.place!r}; leave it out')
        if self.curve is None and self.curve_loss != "embeddings":
            raise ValueError(f"curve_loss={self.curve_loss!r} needs a curve; give one, or leave it out")
        heads = HeadSettings.of(self.multitoken)
        self.multitoken = None if heads is None else asdict(heads)
        super().__post_init__(**kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields; of the curve only its own."""
        return curve_fields(super().to_dict())
