"""What goes to the Hub beside the files of a checkpoint: a card, and a word on names that only this machine knows."""

import logging
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData, file_exists

logger = logging.getLogger(__name__)

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


class PublishedWithCard:
    """Mixin for a model whose uploads, by `push_to_hub` or `save_pretrained`, have a card that says what it is."""

    def _upload_modified_files(self, working_dir: Any, repo_id: str, *args: Any, **kwargs: Any) -> Any:
        """Upload a folder as Transformers does, with our card if the repository has none."""
        if not file_exists(repo_id, "README.md", token=kwargs.get("token")):  # else the folder may have a copy of it
            write_card(self, working_dir, repo_id)
        base = getattr(self.config, "base_model_name_or_path", None)  # pyright: ignore[reportAttributeAccessIssue]
        if base and is_local(base):
            logger.warning("config.json names a path of this machine: base_model_name_or_path=%r", base)
        return super()._upload_modified_files(working_dir, repo_id, *args, **kwargs)  # pyright: ignore


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
