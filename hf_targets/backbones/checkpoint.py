"""Strict loading of checkpoints: no tensor may be missing, unexpected, or of another shape, and no file cut short."""

# pyright: reportAttributeAccessIssue=false
# (a mixin: PreTrainedModel has the rest of from_pretrained)

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils.hub import cached_file

from hf_targets.backbones.publishing import PublishedWithCard
from hf_targets.data.atomic_write import full_disk_named

HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder", "proxies")

_MOST_NAMES = 8


class StrictLoading(PublishedWithCard):
    """`from_pretrained` that raises an error if tensors are missing, unexpected, or of another shape."""

    made_by = "from_base"
    """Name of the method that makes a model from a checkpoint of another kind."""
    new_parts: tuple[str, ...] = ()
    """Beginnings of the names of tensors that may all be missing together: parts that are new to a checkpoint."""

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | PathLike,
        *args: Any,
        strict: bool = True,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Load a model.

        Args:
            strict: False: tensors that are missing are made anew, and those that are unexpected left out, as
                Transformers does, which logs them.
            kwargs: As Transformers has them; `ignore_mismatched_sizes=True` makes tensors of another shape anew.
        Raises:
            ValueError: If the checkpoint is of another kind, one of its files is cut short, or a tensor is missing,
                unexpected or of another shape.
        """
        name = pretrained_model_name_or_path
        if kwargs.get("config") is None:
            hub = {key: kwargs[key] for key in HUB_ARGUMENTS if key in kwargs}
            cls.check_kind(name, PreTrainedConfig.get_config_dict(name, **hub)[0])
        resized = bool(kwargs.get("ignore_mismatched_sizes"))
        kwargs["ignore_mismatched_sizes"] = True  # the check below raises an error that names the shapes
        with broken_files_named(name, kwargs):
            model, info = super().from_pretrained(name, *args, output_loading_info=True, **kwargs)
        mismatched = {tensor: (found, expected) for tensor, found, expected in info["mismatched_keys"]}
        tied: Any = model.all_tied_weights_keys  # of these the other one is loaded
        new = {tensor for tensor in model.state_dict() if tensor.startswith(cls.new_parts or ("\0",))} - set(tied)
        missing = set(info["missing_keys"])
        missing = missing - new if new <= missing else missing
        shapes = {} if resized else mismatched
        missing, unexpected = (missing, info["unexpected_keys"]) if strict else ((), ())
        way_out = ", or pass strict=False to load what fits" if missing or unexpected else ""
        if shapes:
            way_out += ", or pass ignore_mismatched_sizes=True for new tensors of the other shape"
        _check_complete(name, missing, unexpected, shapes, way_out)
        return (model, info) if output_loading_info else model  # pyright: ignore[reportReturnType]

    def save_pretrained(self, save_directory: str | PathLike, *args: Any, **kwargs: Any) -> None:
        """Save the model as Transformers does; an OSError names the folder if its disk is full."""
        with full_disk_named(save_directory):
            super().save_pretrained(save_directory, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    @classmethod
    def check_kind(cls, name: str | PathLike, values: dict[str, Any]) -> None:
        """Raise a ValueError if a checkpoint with these values in config.json is of another kind."""
        kind, expected = values.get("model_type"), cls.config_class.model_type
        if kind != expected:
            raise ValueError(
                f"{name} is a checkpoint of kind {kind!r}, not {expected!r}; "
                f"make a model from it with {cls.__name__}.{cls.made_by}({str(name)!r})"
            )


def check_tensors(where: str | PathLike, found: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise a ValueError, which names a file and tensors, if they do not have the names and shapes of a model."""
    both = found.keys() & shapes.keys()
    mismatched = {name: (found[name].shape, shapes[name]) for name in both if found[name].shape != shapes[name]}
    _check_complete(where, shapes.keys() - found.keys(), found.keys() - shapes.keys(), mismatched)


def _check_complete(
    where: str | PathLike,
    missing: Iterable[str],
    extra: Iterable[str],
    mismatched: Mapping[str, tuple[Sequence[int], Sequence[int]]],
    way_out: str = "",
) -> None:
    shapes = [f"{name} is {tuple(found)}, not {tuple(expected)}" for name, (found, expected) in mismatched.items()]
    wrong = {"missing": missing, "not in the model": extra, "of another shape": shapes}
    problems = [f"{problem}: {listed(sorted(names))}" for problem, names in wrong.items() if names]
    if problems:
        raise ValueError(
            f"the checkpoint at {where} does not fit its configuration; {'; '.join(problems)}. Copy or download it "
            f"again{way_out}"
        )


def listed(names: Sequence[str]) -> str:
    """Return the first names in one string, with the number of the others."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


@contextmanager
def broken_files_named(name: str | PathLike, loading: Mapping[str, Any]) -> Iterator[None]:
    """Inside the `with` block, a ValueError names a weight file that is cut short, which safetensors' error does not.

    Args:
        name: The checkpoint that is loaded: a folder, or a repository of the Hub.
        loading: The arguments of `from_pretrained`, of which those of the Hub are used.
    """
    try:
        yield
    except SafetensorError as error:
        for file in sorted(_folder(name, loading).glob("*.safetensors")):
            try:
                with safe_open(file, framework="pt"):
                    pass
            except (SafetensorError, OSError):
                told = f"{file} is not a whole safetensors file: {error}; copy or download the checkpoint again"
                raise ValueError(told) from error
        raise


def _folder(name: str | PathLike, loading: Mapping[str, Any]) -> Path:
    """Return the folder of the weight files: for a repository of the Hub, the folder of the downloaded files."""
    folder = Path(name, loading.get("subfolder") or "")
    if folder.is_dir():
        return folder
    where = {key: loading[key] for key in ("cache_dir", "revision", "subfolder") if loading.get(key)}
    quiet = {"_raise_exceptions_for_missing_entries": False}
    config = cached_file(name, "config.json", local_files_only=True, **quiet, **where)
    return folder if config is None else Path(config).parent
