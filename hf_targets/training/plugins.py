"""Plug-ins of a user's own, imported before settings are checked, so that settings may name what they register."""

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path


def import_plugins(names: Iterable[str]) -> None:
    """Import modules or Python files, which register heads, samplers or miners (`HEADS`, `SAMPLERS`, `MINERS`).

    Importing runs their code: name only what you trust. A file becomes the module `hf_targets_plugin_NAME`.

    Args:
        names: Of modules that Python finds (`my_package.heads`), or of files (`my_heads.py`).
    Raises:
        ValueError: If there is no such file, or a plug-in raises a ValueError, such as that of a name that is taken.
            Other errors are raised as they are.
    """
    for name in names:
        try:
            if name.endswith(".py"):
                _import_file(Path(name))
            else:
                importlib.import_module(name)
        except ValueError as error:
            raise ValueError(f"plugins: {name}: {error}") from error


def _import_file(file: Path) -> None:
    if not file.is_file():
        raise ValueError("there is no such file")
    name = f"hf_targets_plugin_{file.stem}"
    loaded = sys.modules.get(name)
    if loaded is not None:
        if Path(loaded.__file__ or "").resolve() == file.resolve():
            return
        raise ValueError(f"a plug-in of this name was imported from {loaded.__file__}; rename one of the files")
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as dataclasses and pickles of its classes look it up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
