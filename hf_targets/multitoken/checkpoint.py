"""Two forms of checkpoint, both loaded strictly: the whole model, or only the heads and the name of the base model."""

import copy
import logging
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self, cast

import torch
from huggingface_hub import create_repo
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import GenerationConfig, PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig
from transformers.quantizers.auto import AutoQuantizationConfig
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME
from transformers.utils.hub import cached_file

from hf_targets.backbones.checkpoint import HUB_ARGUMENTS, StrictLoading, check_tensors, is_local
from hf_targets.backbones.configuration import PACKAGE_IMPORT
from hf_targets.backbones.published import read_tensors
from hf_targets.backbones.quantization import is_quantized
from hf_targets.backbones.weight_access import is_readable, whole_state_dict
from hf_targets.backbones.weight_hash import weight_hash
from hf_targets.backbones.wrapping import load_base
from hf_targets.data.atomic_write import written_together
from hf_targets.multitoken.configuration import MultiTokenConfig, base_fields
from hf_targets.multitoken.mtp_files import save_native_mtp

logger = logging.getLogger(__name__)

HEADS_NAME = "heads.safetensors"
_MAY_LACK = {f"_raise_exceptions_for_{what}": False for what in ("missing_entries", "connection_errors")}
_HOW_LOADED = ("gguf_file", "quantization_config", "revision", "subfolder", "variant")
_PLACE = ("revision", "subfolder")
_IDENTITY = "base_identity"  # a key of that file's metadata


def identity_of(backbone: PreTrainedModel) -> str | None:
    """Return the type of a model's weights and a hash of them, rounded to bfloat16 so that other types have it too.

    None if they cannot all be read, or are quantised. The configuration does not count: heads do not depend on it.
    """
    if not is_readable(backbone) or hasattr(backbone.config, "quantization_config") or is_quantized(backbone):
        return None
    digest = weight_hash(backbone, settings=False, rounded_to=torch.bfloat16)
    return f"{str(backbone.dtype).removeprefix('torch.')} {digest}"


def how_loaded(base: PreTrainedModel, loading: dict[str, Any]) -> dict[str, Any] | None:
    """Return those arguments of `from_pretrained` that load the same base model again, as JSON has them; None: none.

    Args:
        loading: The arguments that it was loaded with, if they are known. A model that was loaded before tells only
            its quantization.
    """
    quantizer: Any = getattr(base, "hf_quantizer", None)
    kept = None if quantizer is None else quantizer.quantization_config
    found = {
        "gguf_file": getattr(kept, "gguf_file", None),
        "quantization_config": None if quantizer is None or quantizer.pre_quantized else kept,
        **{name: loading[name] for name in _HOW_LOADED if loading.get(name) is not None},
    }
    asked = found["quantization_config"]
    found["quantization_config"] = asked.to_dict() if hasattr(asked, "to_dict") else asked
    return {name: value for name, value in found.items() if value is not None} or None


def _load_again(told: dict[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that `how_loaded` has recorded; no others, as the file is data."""
    told = {name: value for name, value in (told or {}).items() if name in _HOW_LOADED}
    for name, value in told.items():
        if not isinstance(value, dict if name == "quantization_config" else str):
            raise ValueError(f"base_loading has {value!r} as {name}; take it out of config.json, and give {name}= here")
    if "quantization_config" in told:
        told["quantization_config"] = AutoQuantizationConfig.from_dict(told["quantization_config"])
    return told


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
    base_identity: str | None = None
    """Identity of the backbone when the heads were added; None in a model that was loaded whole."""

    def save_pretrained(
        self,
        save_directory: str | PathLike,
        *args: Any,
        heads_only: bool = False,
        native_mtp: bool = False,
        push_to_hub: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Save the model, or with `heads_only` only the heads and the name of the base model: a few MB.

        Args:
            heads_only: Write `heads.safetensors`, with a hash of the backbone, and a configuration that names the base
                model. For a model that was loaded whole, or whose backbone was trained, the base model is loaded to
                compare hashes. Weights that are offloaded, sharded or quantised are not compared.
            native_mtp: Save backbone and `head="mtp"` for Transformers alone, as `save_native_mtp` says: with
                `trust_remote_code=True` it loads them, and `generate(..., use_mtp=True)` drafts.
            push_to_hub: Upload the files too; with `heads_only` the other arguments are then `repo_id` and those of
                `push_to_hub`.
        Raises:
            ValueError: With `heads_only`, if the base model has no name, or the backbone differs from it, or it is
                uploaded and only this machine has the base model; nothing is written then. With `native_mtp`, if
                Transformers cannot run the heads.
        """
        whole: Any = super()
        if native_mtp:
            if heads_only or push_to_hub:
                raise ValueError("native_mtp=True writes a whole model to a folder; leave out the other arguments")
            return save_native_mtp(self, save_directory, *args, **kwargs)
        if not heads_only:
            return whole.save_pretrained(save_directory, *args, push_to_hub=push_to_hub, **kwargs)
        if args or (kwargs and not push_to_hub):
            raise ValueError(f"heads_only=True takes no other argument, got {[*args, *kwargs]}; leave them out")
        config: MultiTokenConfig = copy.deepcopy(self.config)  # pyright: ignore[reportAttributeAccessIssue]
        if not config.base_model_name_or_path:
            raise ValueError(
                "heads_only=True needs the name of the base model, and this one has no name; set "
                "config.base_model_name_or_path"
            )
        if push_to_hub and is_local(config.base_model_name_or_path):
            raise ValueError(
                f"the base model of these heads, {config.base_model_name_or_path}, is a path of this machine; push it "
                "too, and set model.config.base_model_name_or_path to its name on the Hub"
            )
        base = self._unchanged_base(config)
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
            if push_to_hub:
                return self._push(unfinished, Path(save_directory).name, **kwargs)

    def push_to_hub(self, repo_id: str, *, heads_only: bool = False, **kwargs: Any) -> Any:
        """Upload the model as Transformers does, or with `heads_only` only the heads, as `save_pretrained` does."""
        if not heads_only:
            return super().push_to_hub(repo_id, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        with TemporaryDirectory() as folder:
            return self.save_pretrained(folder, heads_only=True, push_to_hub=True, repo_id=repo_id, **kwargs)

    def _push(
        self,
        folder: Path,
        name: str,
        *,
        repo_id: str | None = None,
        private: bool | None = None,
        token: bool | str | None = None,
        **commit: Any,
    ) -> Any:
        repo_id = create_repo(repo_id or name, private=private, token=token, exist_ok=True).repo_id
        return self._upload_modified_files(folder, repo_id, files_timestamps={}, token=token, **commit)

    def _unchanged_base(self, config: MultiTokenConfig) -> str | None:
        """Return the identity of the base model if it is known; raise an error if the backbone differs from it."""
        name = str(config.base_model_name_or_path)
        own, base = identity_of(self.backbone), self.base_identity  # pyright: ignore[reportAttributeAccessIssue]
        if own is not None and not _same(base, own):  # trained since, and perhaps saved since, too
            base = identity_of(self._load_backbone(name, _load_again(config.base_loading)))
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
        own = {key: kwargs.pop(key) for key in base_fields(cls.config_class) if key in kwargs}
        wants_info = kwargs.pop("output_loading_info", False)
        loading = {key: value for key, value in kwargs.items() if key not in hub}
        known, unused = cls._read_config(name, config, hub, own, loading)
        if known.heads_only:
            loading.pop("adapter_kwargs", None)  # an Auto class puts the revision of the heads there
            saved = cls.config_class.from_dict(PreTrainedConfig.get_config_dict(name, **hub)[0])
            if config is not None:  # an Auto class sets fields of the backbone there, from its own arguments
                loading = {**known.changed_from(saved), **loading}
            if saved.base_model_name_or_path == known.base_model_name_or_path:  # else the caller says how
                loading = {**_load_again(saved.base_loading), **loading}
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
                f"{name} holds only heads, and its config.json names no base model; give base_model_name_or_path="
            )
        found_at = [(Path(at).resolve(), *map(of.get, _PLACE)) for at, of in ((name, hub), (base, backbone_kwargs))]
        if found_at[0] == found_at[1]:
            raise ValueError(f"{name} holds only heads, and names itself as their base; give base_model_name_or_path=")
        file = Path(str(cached_file(name, HEADS_NAME, **hub)))
        state = read_tensors(file)
        with safe_open(file, framework="pt") as opened:
            made_for = (opened.metadata() or {}).get(_IDENTITY)
        fields = {key: getattr(config, key) for key in base_fields(cls.config_class)}
        try:
            backbone = cls._load_backbone(base, backbone_kwargs)
        except (OSError, ValueError) as error:
            told = (
                f"{name} holds only heads, and their base, {base}, cannot be loaded; give "
                f"base_model_name_or_path=, or to {cls.__name__}.from_pretrained what else loads it, as gguf_file="
            )
            raise (OSError if isinstance(error, OSError) else ValueError)(f"{told}: {error}") from error
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
        model.config.base_loading = how_loaded(backbone, backbone_kwargs)
        check_tensors(file, state, {key: tensor.shape for key, tensor in model.heads.state_dict().items()})
        model.heads.load_state_dict(state)
        if model.can_generate() and cached_file(name, GENERATION_CONFIG_NAME, **_MAY_LACK, **hub):
            model.generation_config = GenerationConfig.from_pretrained(name, **hub)
        return model.eval()
