"""Settings files: YAML mappings of names to values, read with a limit on what aliases may grow to."""

from pathlib import Path
from typing import Any

import yaml

_MAX_NODES = 10_000
"""Values that a settings file may have, each counted as often as it is referred to."""


def read_settings(path: Path) -> dict[str, Any]:
    """Return the fields of a YAML file.

    Raises:
        ValueError: If there is no such file, or it is not a mapping of names, has a key twice, or grows beyond all
            measure by aliases.
    """
    if not path.is_file():
        raise ValueError(f"no settings file at {path}")
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, yaml.SafeLoader)
        _check_nodes(path, node, {})
        settings = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise ValueError(f"{path}{line} is not YAML: {error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a text in YAML: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply for settings") from error
    if not isinstance(settings, dict) or not all(isinstance(name, str) for name in settings):
        raise ValueError(f"{path} must hold `field: value` lines, got {type(settings).__name__}")
    return settings


def _check_nodes(path: Path, node: yaml.Node | None, sizes: dict[int, int]) -> int:
    """Return how many values a node holds, each counted as often as it is referred to."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return 1
    line = f"{path}, line {node.start_mark.line + 1}"
    if id(node) not in sizes:
        sizes[id(node)] = _MAX_NODES  # until it is known, so that what refers to itself is refused
        pairs = node.value if isinstance(node, yaml.MappingNode) else [(value,) for value in node.value]
        names = [key.value for key, *_ in pairs if isinstance(node, yaml.MappingNode)]
        if twice := sorted({str(name) for name in names if names.count(name) > 1}):
            raise ValueError(f"{line}: a mapping must have each key once, got {', '.join(twice)} twice")
        sizes[id(node)] = 1 + sum(_check_nodes(path, value, sizes) for pair in pairs for value in pair)
    if sizes[id(node)] > _MAX_NODES:
        raise ValueError(f"{line}: settings may have {_MAX_NODES:,} values, aliases written out, and these have more")
    return sizes[id(node)]
