"""Checkpoints of our models: loaded strictly, none with a tensor missing or left over; uploaded with a card."""

# pyright: reportAttributeAccessIssue=false
# (a mixin: PreTrainedModel has the rest of from_pretrained)

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Self

from huggingface_hub import ModelCard, ModelCardData, file_exists
from safetensors import SafetensorError
from torch import Tensor
from transformers.configuration_utils import PreTrainedConfig

logger = logging.getLogger(__name__)

HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder", "proxies")

_MOST_NAMES = 8

_CARD = """---
{{ card_data }}
---

# {{ title }}

A `{{ class_name }}`{% if backbone %} around a `{{ backbone }}`{% endif %}, of the Python package
hf_targets.{% if heads_only %}
The repository holds its heads alone: `from_pretrained` also loads the base model, `{{ base }}`.{% endif %}

```python
from {{ module }} import {{ class_name }}

model = {{ class_name }}.from_pretrained("{{ repo }}")
```

In a process that has run `import hf_targets`, the Auto classes of Transformers load it too.
"""


class StrictLoading:
    """`from_pretrained` that raises an error if tensors are missing, unexpected, or of another shape.

    Uploads, by `push_to_hub` or `save_pretrained`, have a card that says what the model is.
    """

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
        with broken_files_named(name):
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

    def _upload_modified_files(self, working_dir: Any, repo_id: str, *args: Any, **kwargs: Any) -> Any:
        """Upload a folder as Transformers does, with our card if the repository has none."""
        if not file_exists(repo_id, "README.md", token=kwargs.get("token")):  # else the folder may have a copy of it
            write_card(self, working_dir, repo_id)
        base = getattr(self.config, "base_model_name_or_path", None)  # pyright: ignore[reportAttributeAccessIssue]
        if base and is_local(base):
            logger.warning("config.json names a path of this machine: base_model_name_or_path=%r", base)
        return super()._upload_modified_files(working_dir, repo_id, *args, **kwargs)  # pyright: ignore

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
def broken_files_named(name: str | PathLike) -> Iterator[None]:
    """Inside the `with` block, a ValueError names a checkpoint with a weight file that is cut short."""
    try:
        yield
    except SafetensorError as error:
        raise ValueError(
            f"{name} has a file that is not whole safetensors: {error}; copy or download the checkpoint again"
        ) from error


def write_card(model: Any, folder: Any, repo_id: str) -> None:
    """Write the card `README.md` of a model, as it will be in a repository of the Hub."""
    name, base = type(model).__name__, getattr(model.config, "base_model_name_or_path", None)
    tags = ["hf-targets", model.config.model_type, *(getattr(model, "model_tags", None) or [])]
    published = base if base and not is_local(base) else None
    data = ModelCardData(library_name="hf-targets", tags=tags, base_model=published)
    values = {
        "title": repo_id.rpartition("/")[2],
        "repo": repo_id,
        "class_name": name,
        "module": "hf_targets" if "For" in name else type(model).__module__,  # the public names
        "backbone": type(model.backbone).__name__ if hasattr(model, "backbone") else None,
        "heads_only": not list(Path(folder).glob("*model*.safetensors")),
        "base": base,
    }
    ModelCard.from_template(data, template_str=_CARD, **values).save(Path(folder) / "README.md")


def is_local(name: str) -> bool:
    """Return whether a model's name is a path of this machine."""
    return Path(name).is_absolute() or Path(name).exists()
