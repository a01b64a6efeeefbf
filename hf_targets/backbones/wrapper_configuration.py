"""The configuration of a model around a backbone, through which the backbone's fields are read and set."""

from typing import Any, ClassVar

from transformers.configuration_utils import PreTrainedConfig

ANSWERED = (
    "bos_token_id",
    "d_model",
    "decoder_layers",
    "decoder_start_token_id",
    "encoder_layers",
    "eos_token_id",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "n_ctx",
    "n_embd",
    "n_head",
    "n_layer",
    "n_positions",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "pad_token_id",
    "sliding_window",
    "tie_word_embeddings",
    "use_cache",
    "vocab_size",
)
"""Fields of the backbone's configuration that can also be read and set on the wrapper's configuration."""

_SWITCHES = ("output_attentions", "output_hidden_states")
"""Fields that every configuration has; setting one on the wrapper's configuration also sets it on the backbone's."""


class AnswersForBackbone:
    """A configuration with a field `backbone`; it forwards sizes, token ids and switches to that configuration.

    Evaluation harnesses, peft and serving programs read these fields from `model.config`, and `from_pretrained` sets
    those that it is given (`use_cache=False`, `pad_token_id=0` ...). If a field were missing, some programs would use a
    default: lm-eval, for example, would read 2,048 positions with a model that has 128.
    """

    auto_map: ClassVar[dict[str, str]] = {}  # TRL reads it from every configuration; empty means no remote code

    def __post_init__(self, **kwargs: Any) -> None:
        answered = {name: kwargs.pop(name) for name in ANSWERED if name in kwargs}
        super().__post_init__(**kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        for name, value in answered.items():
            setattr(self, name, value)
        for name in _SWITCHES:
            wanted = getattr(self, name) or getattr(self.backbone, name, False)  # pyright: ignore
            setattr(self, name, wanted)

    def changed_from(self, other: Any) -> dict[str, Any]:
        """Return the backbone's fields that differ from those in `other`, as arguments of `from_pretrained`."""
        names = (*ANSWERED, *_SWITCHES)
        pairs = {name: (getattr(self, name, None), getattr(other, name, None)) for name in names}
        changed = {name: own for name, (own, others) in pairs.items() if own != others}
        attention = self._attn_implementation  # pyright: ignore[reportAttributeAccessIssue]
        return changed if attention is None else {**changed, "attn_implementation": attention}

    def _backbone(self) -> PreTrainedConfig | None:
        backbone = self.__dict__.get("backbone")
        return backbone if isinstance(backbone, PreTrainedConfig) else None

    def __getattr__(self, name: str) -> Any:
        backbone = self._backbone() if name in ANSWERED else None
        if backbone is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(backbone.get_text_config(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        backbone = self._backbone()
        if backbone is not None and name in ANSWERED:
            setattr(backbone.get_text_config(), name, value)
            return
        super().__setattr__(name, value)
        if backbone is not None and name in _SWITCHES:
            setattr(backbone, name, value)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Make a configuration from its fields; if `backbone` is among them, ignore the backbone's fields beside it."""
        if config_dict.get("backbone") is not None:
            config_dict = {name: value for name, value in config_dict.items() if name not in ANSWERED}
        return super().from_dict(config_dict, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, and those of the backbone beside them, where peft looks for sizes."""
        backbone = self._backbone()
        text = None if backbone is None else backbone.get_text_config()
        answers = {} if text is None else {name: getattr(text, name) for name in ANSWERED if hasattr(text, name)}
        return {**answers, **super().to_dict()}  # pyright: ignore[reportAttributeAccessIssue]

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the fields to save in a checkpoint; those of the backbone appear only inside `backbone`."""
        values: dict[str, Any] = super().to_diff_dict()  # pyright: ignore[reportAttributeAccessIssue]
        return {name: value for name, value in values.items() if name not in ANSWERED}
