"""Checkpoints are read strictly: nothing missing, nothing left over."""

# pyright: reportAttributeAccessIssue=false
# (a mixin: the rest of from_pretrained is PreTrainedModel's)

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Self

from torch import Tensor
from transformers.configuration_utils import PreTrainedConfig

from hf_targets.backbones.weight_files import HUB_ARGUMENTS, broken_files_named

_MOST_NAMES = 8


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
            ValueError: If the checkpoint is of another kind, a file of it is cut short, or a tensor is missing, left
                over or of another shape.
        """
        name = pretrained_model_name_or_path
        if kwargs.get("config") is None:
            hub = {key: kwargs[key] for key in HUB_ARGUMENTS if key in kwargs}
            cls.check_kind(name, PreTrainedConfig.get_config_dict(name, **hub)[0])
        kwargs["ignore_mismatched_sizes"] = True  # the check below refuses them, and tells their shapes
        with broken_files_named(name, kwargs):
            model, info = super().from_pretrained(name, *args, output_loading_info=True, **kwargs)
        mismatched = {tensor: (found, expected) for tensor, found, expected in info["mismatched_keys"]}
        _check_complete(name, info["missing_keys"], info["unexpected_keys"], mismatched)
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


def check_tensors(where: str | PathLike, found: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]) -> None:
    """Check that a file's tensors are those that a model has, by their names and shapes.

    Raises:
        ValueError: If they are not, with the names of the tensors.
    """
    both = found.keys() & shapes.keys()
    mismatched = {name: (found[name].shape, shapes[name]) for name in both if found[name].shape != shapes[name]}
    _check_complete(where, shapes.keys() - found.keys(), found.keys() - shapes.keys(), mismatched)


def _check_complete(
    where: str | PathLike,
    missing: Iterable[str],
    extra: Iterable[str],
    mismatched: Mapping[str, tuple[Sequence[int], Sequence[int]]],
) -> None:
    shapes = [f"{name} is {tuple(found)}, not {tuple(expected)}" for name, (found, expected) in mismatched.items()]
    wrong = {"missing": missing, "not in the model": extra, "of another shape": shapes}
    told = [f"{what}: {listed(sorted(names))}" for what, names in wrong.items() if names]
    if told:
        raise ValueError(
            f"the checkpoint at {where} does not fit its configuration; {'; '.join(told)}. It is cut short, or its "
            "config.json is of another model"
        )


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
