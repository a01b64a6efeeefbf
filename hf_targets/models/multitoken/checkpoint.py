"""Two forms of a checkpoint, both read strictly: everything, or the heads alone with the name of their base model."""

import copy
from os import PathLike
from pathlib import Path
from typing import Any, Self

from safetensors.torch import save_file
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils.hub import cached_file

from hf_targets.models.checkpoint import StrictLoading, check_tensors
from hf_targets.models.multitoken.configuration import BASE_FIELDS, MultiTokenConfig
from hf_targets.models.published import read_tensors
from hf_targets.models.weight_files import HUB_ARGUMENTS
from hf_targets.models.wrapping import load_base

HEADS_NAME = "heads.safetensors"


class CheckpointMixin(StrictLoading):
    """`save_pretrained` and `from_pretrained` of a model with `backbone` and `heads`."""

    def save_pretrained(
        self, save_directory: str | PathLike, *args: Any, heads_only: bool = False, **kwargs: Any
    ) -> None:
        """Save the model, or with `heads_only` its heads alone: a few MB that name their base model.

        Args:
            heads_only: Write `heads.safetensors` and a configuration that says where the backbone comes from. The
                backbone must not have changed since it was loaded from there.
        Raises:
            ValueError: If `heads_only` is asked for and the base model has no name.
        """
        if not heads_only:
            super().save_pretrained(save_directory, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
            return
        if args or kwargs:
            raise ValueError(f"heads_only=True takes no other argument, got {[*args, *kwargs]}")
        config: MultiTokenConfig = copy.deepcopy(self.config)  # pyright: ignore[reportAttributeAccessIssue]
        if not config.base_model_name_or_path:
            raise ValueError(
                "a checkpoint of heads alone names its base model, and this one has no name; make the model with "
                "from_base(name or path), or set config.base_model_name_or_path"
            )
        config.heads_only = True
        config.architectures = [type(self).__name__]
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        state = {name: tensor.contiguous() for name, tensor in self.heads.state_dict().items()}  # pyright: ignore[reportAttributeAccessIssue]
        save_file(state, folder / HEADS_NAME, metadata={"format": "pt"})
        config.save_pretrained(folder)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | PathLike,
        *args: Any,
        config: PreTrainedConfig | None = None,
        **kwargs: Any,
    ) -> Self:
        """Load a model from either form of checkpoint.

        A checkpoint of heads alone loads its base model first, with the same arguments (dtype, device_map ...) but for
        those that say where in the Hub the heads lie.

        Raises:
            ValueError: If the checkpoint is of another kind, or a tensor is missing, left over or of another shape.
        """
        name = pretrained_model_name_or_path
        hub = {key: kwargs[key] for key in HUB_ARGUMENTS if key in kwargs}
        own = {key: kwargs.pop(key) for key in BASE_FIELDS if key in kwargs}
        config = cls._read_config(name, config, hub, own)
        wants_info = kwargs.pop("output_loading_info", False)
        if config.heads_only:
            model = cls._load_heads(name, config, hub, {k: v for k, v in kwargs.items() if k not in hub})
            info = {"missing_keys": set(), "unexpected_keys": set(), "mismatched_keys": set(), "error_msgs": []}
        else:
            model, info = super().from_pretrained(name, *args, config=config, output_loading_info=True, **kwargs)  # pyright: ignore[reportGeneralTypeIssues]
        return (model, info) if wants_info else model  # pyright: ignore[reportReturnType]

    @classmethod
    def _read_config(
        cls, name: str | PathLike, config: PreTrainedConfig | None, hub: dict[str, Any], own: dict[str, Any]
    ) -> MultiTokenConfig:
        if config is None:
            values, _ = PreTrainedConfig.get_config_dict(name, **hub)
        else:
            values = config.to_dict()
        cls.check_kind(name, values)
        if isinstance(config, MultiTokenConfig) and not own:
            return config
        return MultiTokenConfig.from_dict({**values, **own})

    @classmethod
    def _load_heads(
        cls, name: str | PathLike, config: MultiTokenConfig, hub: dict[str, Any], backbone_kwargs: dict[str, Any]
    ) -> Self:
        file = cached_file(name, HEADS_NAME, **hub)
        state = read_tensors(Path(file))
        fields = {key: getattr(config, key) for key in BASE_FIELDS}
        backbone = load_base(str(config.base_model_name_or_path), backbone_kwargs)
        if isinstance(backbone, cls):  # its base has heads too, which these replace
            backbone = backbone.backbone  # pyright: ignore[reportAttributeAccessIssue]
        model = cls.from_base(backbone, **fields)  # pyright: ignore[reportAttributeAccessIssue]
        check_tensors(file, state, {key: tensor.shape for key, tensor in model.heads.state_dict().items()})
        model.heads.load_state_dict(state)
        return model.eval()
