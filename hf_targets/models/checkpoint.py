"""Checkpoints are read strictly: nothing missing, nothing left over."""

# pyright: reportAttributeAccessIssue=false
# (a mixin: the rest of from_pretrained is PreTrainedModel's)

from os import PathLike
from typing import Any, Self

from transformers.configuration_utils import PreTrainedConfig

HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder", "proxies")


class StrictLoading:
    """`from_pretrained` of a model that refuses a checkpoint with too few tensors, too many, or of other shapes."""

    made_by = "from_base"
    """The method that makes a model of a checkpoint of another kind."""

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | PathLike, *args: Any, output_loading_info: bool = False, **kwargs: Any
    ) -> Self:
        """Load a model.

        Raises:
            ValueError: If the checkpoint is of another kind, or a tensor is missing, left over or of another shape.
        """
        name = pretrained_model_name_or_path
        if kwargs.get("config") is None:
            hub = {key: kwargs[key] for key in HUB_ARGUMENTS if key in kwargs}
            cls.check_kind(name, PreTrainedConfig.get_config_dict(name, **hub)[0])
        model, info = super().from_pretrained(name, *args, output_loading_info=True, **kwargs)
        mismatched = [str(key[0] if isinstance(key, tuple) else key) for key in info["mismatched_keys"]]
        check_complete(name, set(info["missing_keys"]), set(info["unexpected_keys"]), mismatched)
        return (model, info) if output_loading_info else model  # pyright: ignore[reportReturnType]

    @classmethod
    def check_kind(cls, name: str | PathLike, values: dict[str, Any]) -> None:
        """Check that a checkpoint with this configuration is one of this class.

        Raises:
            ValueError: If it is of another kind.
        """
        kind, ours = values.get("model_type"), cls.config_class.model_type
        if kind != ours:
            raise ValueError(
                f"{name} is a checkpoint of kind {kind!r}, not {ours!r}; "
                f"make one of it with {cls.__name__}.{cls.made_by}({str(name)!r})"
            )


def check_complete(where: str | PathLike, missing: set[str], extra: set[str], mismatched: list[str]) -> None:
    """Check that a checkpoint and the model it was read into have the same tensors.

    Raises:
        ValueError: If they have not, with the names of the tensors.
    """
    wrong = {"missing": sorted(missing), "not in the model": sorted(extra), "of another shape": sorted(mismatched)}
    told = [f"{what}: {', '.join(names)}" for what, names in wrong.items() if names]
    if told:
        raise ValueError(
            f"the checkpoint at {where} does not fit its configuration; {'; '.join(told)}. It is cut short, or its "
            "config.json is of another model"
        )
