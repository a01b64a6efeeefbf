"""Two forms of checkpoint, both loaded strictly: the whole model, or only the heads and the name of the base model."""

import copy
import logging
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import GenerationConfig, PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME
from transformers.utils.hub import cached_file

from hf_targets.backbones.checkpoint import HUB_ARGUMENTS, StrictLoading, check_tensors
from hf_targets.backbones.configuration import PACKAGE_IMPORT
from hf_targets.backbones.published import read_tensors
from hf_targets.backbones.weight_access import is_readable, whole_state_dict
from hf_targets.backbones.weight_hash import weight_hash
from hf_targets.backbones.wrapping import load_base
from hf_targets.data.atomic_write import written_together
from hf_targets.multitoken.configuration import BASE_FIELDS, MultiTokenConfig

logger = logging.getLogger(__name__)

HEADS_NAME = "heads.safetensors"
_MAY_LACK = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors")}
_IDENTITY = "base_identity"  # a key of that file's metadata


def identity_of(backbone: PreTrainedModel) -> str | None:
    """Return the type of a model's weights and a hash of them, rounded to bfloat16 so that other types have it too.

    None if they cannot all be read, or are quantised. The configuration does not count: heads do not depend on it.
    """
    if not is_readable(backbone) or hasattr(backbone.config, "quantization_config"):
        return None
    digest = weight_hash(backbone, settings=False, rounded_to=torch.bfloat16)
    return f"{str(backbone.dtype).removeprefix('torch.')} {digest}"


def _same(one: str | None, other: str | None) -> bool | None:
    """Return whether two identities are of the same weights; None if they do not tell."""
    if one is None or other is None:
        return None
    (dtype, own), (other_dtype, others) = one.split(), other.split()
    # float16 has other bits than bfloat16, so that weights which were rounded to it have another hash
    return True if own == others else None if dtype != other_dtype and "float16" in (dtype, other_dtype) else False


class CheckpointMixin(StrictLoading):
    """`save_pretrained` and `from_pretrained` of a model with `backbone` and `heads`."""

    config_class: ClassVar[type[MultiTokenConfig]]
    base_fields: ClassVar[tuple[str, ...]] = BASE_FIELDS
    """The fields of its configuration that a user chooses when putting heads on a base model."""
    base_identity: str | None = None
    """Identity of the backbone when the heads were added; None in a model that was loaded whole."""

    def save_pretrained(
        self, save_directory: str | PathLike, *args: Any, heads_only: bool = False, **kwargs: Any
    ) -> None:
        """Save the model, or with `heads_only` only the heads and the name of the base model: a few MB.

        Args:
            heads_only: Write `heads.safetensors`, with a hash of the backbone, and a configuration that names the base
                model. For a model that was loaded whole, or whose backbone was trained, the base model is loaded to
                compare hashes. Weights that are offloaded, sharded or quantised are not compared.
        Raises:
            ValueError: With `heads_only`, if the base model has no name, or the backbone differs from it; nothing is
                written then.
        """
        if not heads_only:
            super().save_pretrained(save_directory, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
            return
        if args or kwargs:
            raise ValueError(f"heads_only=True takes no other argument, got {[*args, *kwargs]}; leave them out")
        config: MultiTokenConfig = copy.deepcopy(self.config)  # pyright: ignore[reportAttributeAccessIssue]
        if not config.base_model_name_or_path:
            raise ValueError(
                "heads_only=True needs the name of the base model, and this one has no name; set "
                "config.base_model_name_or_path"
            )
        base = self._unchanged_base(config.base_model_name_or_path)
        config.heads_only = True
        config.architectures = [type(self).__name__]
        state = {name: tensor.contiguous() for name, tensor in whole_state_dict(self.heads).items()}  # pyright: ignore[reportAttributeAccessIssue]
        told = [GENERATION_CONFIG_NAME] if self.can_generate() else []  # pyright: ignore[reportAttributeAccessIssue]
        with written_together(save_directory, HEADS_NAME, PACKAGE_IMPORT, *told, CONFIG_NAME) as unfinished:
            save_file(
                state, unfinished / HEADS_NAME, metadata={"format": "pt", **({} if base is None else {_IDENTITY: base})}
            )
            config.save_pretrained(unfinished)
            if told:
                self.generation_config.save_pretrained(unfinished)  # pyright: ignore[reportAttributeAccessIssue]

    def _unchanged_base(self, name: str) -> str | None:
        """Return the identity of the base model if it is known; raise an error if the backbone differs from it."""
        own, base = identity_of(self.backbone), self.base_identity  # pyright: ignore[reportAttributeAccessIssue]
        if own is not None and not _same(base, own):  # trained since, and perhaps saved since, too
            base = identity_of(self._load_backbone(name, {}))
        same = _same(base, own)
        if same is False:
            raise ValueError(
                f"heads_only=True saves no backbone, and this one differs from {name}, which is loaded with the heads. "
                "Save the whole model, without heads_only; or save model.backbone, and set "
                "model.config.base_model_name_or_path to its folder. To train only the heads, freeze the backbone with "
                "model.backbone.requires_grad_(False)"
            )
        if same is None:
            logger.info("The weights of %s cannot be compared with the backbone of these heads.", name)
        return base

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | PathLike,
        *args: Any,
        config: PreTrainedConfig | None = None,
        strict: bool = True,
        **kwargs: Any,
    ) -> Self:
        """Load a model from either form of checkpoint.

        For a checkpoint of only heads, the base model is loaded with the same arguments (dtype, device_map ...), except
        those that locate the heads on the Hub. `strict=False` is for a whole model alone: heads are always whole.

        Raises:
            ValueError: If the checkpoint is of another kind, one of its files is cut short, or a tensor is missing,
                unexpected or of another shape. For a checkpoint of only heads also if the base model has no name, is
                not the one that the heads were made for, or has been trained since.
        """
        name = pretrained_model_name_or_path
        hub = {key: kwargs[key] for key in HUB_ARGUMENTS if key in kwargs}
        own = {key: kwargs.pop(key) for key in cls.base_fields if key in kwargs}
        wants_info = kwargs.pop("output_loading_info", False)
        loading = {key: value for key, value in kwargs.items() if key not in hub}
        known, unused = cls._read_config(name, config, hub, own, loading)
        if known.heads_only:
            if config is not None:  # an Auto class sets fields of the backbone there, from its own arguments
                saved = cls.config_class.from_dict(PreTrainedConfig.get_config_dict(name, **hub)[0])
                loading = {**known.changed_from(saved), **loading}
            model = cls._load_heads(name, known, hub, loading)
            info = {"missing_keys": set(), "unexpected_keys": set(), "mismatched_keys": set(), "error_msgs": []}
        else:
            if own or config is not None:  # else Transformers reads the file, and also sets generation_config from it
                loading = {"config": known, **unused}
            loading |= {"strict": strict, "output_loading_info": True, **hub}
            model, info = super().from_pretrained(name, *args, **loading)  # pyright: ignore[reportGeneralTypeIssues]
        return (model, info) if wants_info else model  # pyright: ignore[reportReturnType]

    @classmethod
    def _load_backbone(cls, name: str, loading: dict[str, Any]) -> PreTrainedModel:
        model = load_base(name, loading, auto_class=cls.auto_class)  # pyright: ignore[reportAttributeAccessIssue]
        return cast(PreTrainedModel, model.backbone if isinstance(model, CheckpointMixin) else model)

    @classmethod
    def _read_config(
        cls,
        name: str | PathLike,
        config: PreTrainedConfig | None,
        hub: dict[str, Any],
        own: dict[str, Any],
        loading: dict[str, Any],
    ) -> tuple[MultiTokenConfig, dict[str, Any]]:
        """Return the configuration with the fields in `own` and `loading` set, and the other items of `loading`."""
        if config is None:
            values, _ = PreTrainedConfig.get_config_dict(name, **hub)
        else:
            values = config.to_dict()
        cls.check_kind(name, values)
        if isinstance(config, cls.config_class) and not own:
            cls.config_class.from_dict(values)  # raises an error if an Auto class has set a field out of its range
            return config, loading
        fields = loading if config is None else {}
        read: Any = cls.config_class.from_dict({**values, **own}, return_unused_kwargs=True, **fields)
        made, unused = read
        return made, unused if config is None else loading

    @classmethod
    def _load_heads(
        cls, name: str | PathLike, config: MultiTokenConfig, hub: dict[str, Any], backbone_kwargs: dict[str, Any]
    ) -> Self:
        base = config.base_model_name_or_path
        if not base:
            raise ValueError(
                f"{name} holds only heads, and its config.json names no base model; give base_model_name_or_path"
            )
        file = Path(str(cached_file(name, HEADS_NAME, **hub)))
        state = read_tensors(file)
        with safe_open(file, framework="pt") as opened:
            made_for = (opened.metadata() or {}).get(_IDENTITY)
        fields = {key: getattr(config, key) for key in cls.base_fields}
        try:
            backbone = cls._load_backbone(base, backbone_kwargs)
        except OSError as error:
            told = f"{name} holds only heads, and their base, {base}, cannot be loaded; give base_model_name_or_path"
            raise OSError(f"{told}: {error}") from error
        same = _same(made_for, identity_of(backbone))
        if same is False:
            raise ValueError(
                f"the heads in {file} were made for a base model that differs from {base}; give the right model as "
                "base_model_name_or_path"
            )
        if same is None:
            logger.info(
                "Cannot tell whether the heads in %s were made for %s: its weights cannot be compared", file, base
            )
        model = cls.from_base(backbone, **fields)  # pyright: ignore[reportAttributeAccessIssue]
        check_tensors(file, state, {key: tensor.shape for key, tensor in model.heads.state_dict().items()})
        model.heads.load_state_dict(state)
        if model.can_generate() and cached_file(name, GENERATION_CONFIG_NAME, **_MAY_LACK, **hub):
            model.generation_config = GenerationConfig.from_pretrained(name, **hub)
        return model.eval()
