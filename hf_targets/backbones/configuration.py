"""What configurations of ours share: checked fields, the name of their package, and the fields of a backbone inside."""

# pyright: reportAttributeAccessIssue=false, reportRedeclaration=false, reportGeneralTypeIssues=false
# pyright: reportAssignmentType=false
# (mixins: PreTrainedConfig has the other methods; names that only some releases of Transformers have)

import inspect
import math
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

from transformers.configuration_utils import PreTrainedConfig

try:
    from transformers.configuration_utils import SubConfigSpec

    class _MakesSubConfigs:
        pass
except ImportError:

    class SubConfigSpec:
        """What Transformers has from 5.20 on: how a configuration inside another is made; ours are all `AutoConfig`."""

        def __init__(self, config_class: Any, model_type: str, optional: bool = False) -> None:
            self.config_class, self.model_type, self.optional = config_class, model_type, optional

        def create_subconfig(self, key: str, subconfig: Any = None, **kwargs: Any) -> tuple[PreTrainedConfig, Any]:
            """Return the configuration that `subconfig` is or has the fields of, and the other arguments."""
            if not isinstance(subconfig, PreTrainedConfig):
                subconfig = self.config_class.for_model(**{"model_type": self.model_type, **(subconfig or {})})
            return subconfig, kwargs

    class _MakesSubConfigs:
        """What `PreTrainedConfig` does from 5.20 on; before, a class had to fill in `sub_configs` and to make them."""

        sub_configs_defaults: ClassVar[dict[str, SubConfigSpec]] = {}

        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            cls.sub_configs = {key: spec.config_class for key, spec in cls.sub_configs_defaults.items()}

        def __post_init__(self, **kwargs: Any) -> None:
            for key, spec in self.sub_configs_defaults.items():
                if getattr(self, key) is not None or not spec.optional:
                    setattr(self, key, spec.create_subconfig(key, getattr(self, key))[0])
            super().__post_init__(**kwargs)


_TRAINERS_CHECKPOINT = re.compile(r"checkpoint-\d+")
PACKAGE_IMPORT = "import_hf_targets.py"
"""The file beside a checkpoint's config.json that Transformers runs if `hf_targets` has not been imported."""

_SOURCE = '''"""This checkpoint needs the package hf_targets: install it from its source, and import it before loading.

With `trust_remote_code=True` Transformers runs this file instead, which does the same import and nothing more.
"""

try:
    from hf_targets import {name}  # noqa: F401
except ImportError as error:
    raise ImportError("this checkpoint needs the package hf_targets: install it from its source repository") from error
'''

ANSWERED = (
    "bos_token_id", "d_model", "decoder_layers", "decoder_start_token_id", "encoder_layers", "eos_token_id",
    "head_dim", "hidden_size", "intermediate_size", "max_position_embeddings", "n_ctx", "n_embd", "n_head", "n_layer",
    "n_positions", "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "pad_token_id", "sliding_window",
    "tie_word_embeddings", "use_cache", "vocab_size",
)  # fmt: skip
"""Fields of the backbone's configuration that can also be read and set on the wrapper's configuration."""

_SWITCHES = ("output_attentions", "output_hidden_states")
"""Fields that every configuration has; setting one on the wrapper's configuration also sets it on the backbone's."""


def check_fields(config: PreTrainedConfig) -> None:
    """Raise a ValueError if a field declared by a class of ours has a value of another type.

    A float may be given as an integer; True and False are no integers. A field of several literals must be one of them.
    """
    names = {field.name for field in fields(config)}  # pyright: ignore[reportArgumentType]
    for cls in type(config).__mro__:
        if not issubclass(cls, PreTrainedConfig) or cls is PreTrainedConfig:
            continue
        for name, declared in inspect.get_annotations(cls).items():
            if name in names:
                _check_field(name, getattr(config, name), declared)


def check_ranges(owner: Any, least: Mapping[str, float], shares: Iterable[str] = ()) -> None:
    """Raise a ValueError if a field that is not None is below its least value or infinite, or no share, in [0, 1)."""
    for name, bound in least.items():
        if (value := getattr(owner, name)) is not None and not bound <= value < math.inf:  # nor is nan in it
            raise ValueError(f"{name} must be {bound} or more, got {value}")
    for name in shares:
        if (value := getattr(owner, name)) is not None and not 0 <= value < 1:
            raise ValueError(f"{name} must be in [0, 1), got {value}; 0 switches it off")


def _check_field(name: str, value: Any, declared: Any) -> None:
    kinds = get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)
    if not any(_is_of(value, kind) for kind in kinds):
        hint = "; leave out the quotation marks" if isinstance(value, str) and {int, float} & {*kinds} else ""
        raise ValueError(f"{name} must be {' or '.join(map(_described, kinds))}, got {value!r}{hint}")


def _is_of(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if kind is float else kind)


def _described(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, get_args(kind)))}"
    names = {int: "an integer", float: "a number", bool: "True or False", str: "a text", NoneType: "None"}
    return names.get(kind) or f"a {kind.__name__}"


class NamesItsPackage(_MakesSubConfigs):
    """A configuration whose checkpoints name `hf_targets`, for processes that have not imported it.

    Without `import hf_targets`, Transformers asks for `trust_remote_code` and reads a file that imports the package; if
    it is not installed, the error names it. A subclass in another package is left alone, as its code may be registered.
    """

    def __post_init__(self, **kwargs: Any) -> None:
        if _is_ours(type(self)):
            kwargs.pop("auto_map", None)  # it says where the class is found, and is no field
        super().__post_init__(**kwargs)

    def to_json_file(self, json_file_path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Write the configuration as Transformers does, and beside it the file that imports `hf_targets`."""
        super().to_json_file(json_file_path, *args, **kwargs)
        if _is_ours(type(self)):
            source, folder = _SOURCE.format(name=type(self).__name__), Path(json_file_path).parent
            # The plain Trainer copies config.json from a checkpoint to the folder above, which it pushes.
            for place in (folder, folder.parent) if _TRAINERS_CHECKPOINT.fullmatch(folder.name) else (folder,):
                (place / PACKAGE_IMPORT).write_text(source, encoding="utf-8")

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the fields that a checkpoint keeps, and where Transformers finds the class of the configuration."""
        values: dict[str, Any] = super().to_diff_dict()
        if not _is_ours(type(self)):
            return values
        found = f"{Path(PACKAGE_IMPORT).stem}.{type(self).__name__}"
        return {**_without_use_cache(values), "auto_map": {"AutoConfig": found}}

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Make a configuration of its fields and of those given by name, which Transformers would set unchecked."""
        if _is_ours(cls):
            config_dict = {name: value for name, value in config_dict.items() if name != "auto_map"}
            for name in [name for name in kwargs if name in _own_fields(cls)]:
                old, new = config_dict.get(name), kwargs.pop(name)
                config_dict[name] = {**old, **new} if isinstance(old, dict) and isinstance(new, dict) else new
        return super().from_dict(config_dict, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Do nothing for a class of ours: Transformers would save a copy of its module, which needs the others."""
        if not _is_ours(cls):
            super().register_for_auto_class(auto_class)


def _without_use_cache(values: dict[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint keeps of a configuration: a Trainer leaves `use_cache=False`, which slows generation."""
    told = {name: value for name, value in values.items() if name != "use_cache"}
    return {name: _without_use_cache(value) if isinstance(value, dict) else value for name, value in told.items()}


def _answer(text: Any, name: str) -> Any:
    """Return a field of a text configuration; one that differs from layer to layer, as in Gemma 4, is no attribute."""
    try:
        return getattr(text, name)
    except RuntimeError as error:
        raise AttributeError(str(error)) from error


def _own_fields(cls: type) -> set[str]:
    """Return the fields that classes of ours declare, and their other names."""
    declared = {name for one in cls.__mro__ if _is_ours(one) for name in inspect.get_annotations(one)}
    return declared | {name for name, real in getattr(cls, "attribute_map", {}).items() if real in declared}


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


class AnswersForBackbone(_MakesSubConfigs):
    """A configuration with a field `backbone`; it forwards sizes, token ids and switches to that configuration.

    Evaluation harnesses, peft and serving programs read these fields from `model.config`, and `from_pretrained` sets
    those that it is given (`use_cache=False`, `pad_token_id=0` ...). If a field were missing, some programs would use a
    default: lm-eval, for example, would read 2,048 positions with a model that has 128.
    """

    auto_map: ClassVar[dict[str, str]] = {}  # TRL reads it from every configuration; empty means no remote code

    def __post_init__(self, **kwargs: Any) -> None:
        answered = {name: kwargs.pop(name) for name in ANSWERED if name in kwargs}
        super().__post_init__(**kwargs)
        for name, value in answered.items():
            setattr(self, name, value)
        for name in _SWITCHES:
            setattr(self, name, getattr(self, name) or getattr(self.backbone, name, False))

    def changed_from(self, other: Any) -> dict[str, Any]:
        """Return the backbone's fields that differ from those in `other`, as arguments of `from_pretrained`."""
        names = (*ANSWERED, *_SWITCHES)
        pairs = {name: (getattr(self, name, None), getattr(other, name, None)) for name in names}
        changed = {name: own for name, (own, others) in pairs.items() if own != others}
        attention = self._attn_implementation
        return changed if attention is None else {**changed, "attn_implementation": attention}

    def _backbone(self) -> PreTrainedConfig | None:
        backbone = self.__dict__.get("backbone")
        return backbone if isinstance(backbone, PreTrainedConfig) else None

    def __getattr__(self, name: str) -> Any:
        backbone = self._backbone() if name in ANSWERED else None
        if backbone is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return _answer(backbone.get_text_config(), name)

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
        return super().from_dict(config_dict, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, and those of the backbone beside them, where peft looks for sizes."""
        backbone = self._backbone()
        text = None if backbone is None else backbone.get_text_config()
        answers: dict[str, Any] = {}
        for name in () if text is None else ANSWERED:
            with suppress(AttributeError):
                answers[name] = _answer(text, name)
        return {**answers, **super().to_dict()}

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the fields to save in a checkpoint; those of the backbone appear only inside `backbone`."""
        values: dict[str, Any] = super().to_diff_dict()
        return {name: value for name, value in values.items() if name not in ANSWERED}
