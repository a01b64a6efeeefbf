"""Functions that run when a module is imported, or at once if it has been."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class AfterImport(MetaPathFinder):
    """Finds one module as the other finders do, and calls a function with it once its code has run."""

    def __init__(self, name: str, function: Callable[[Any], None]) -> None:
        self.name, self.function = name, function

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of another finder for the module; None for any other module."""
        if fullname != self.name:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next((spec for finder in others if (spec := finder.find_spec(fullname, path, target))), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                if module.__name__ == self.name:  # the loader of a zip archive is one for all its modules
                    self.function(module)

            spec.loader.exec_module = execute_and_call
        return spec


def after_import(name: str, function: Callable[[Any], None]) -> None:
    """Call a function with a module when it has been imported; now if it already is. A reload calls it again.

    Args:
        name: The module's full name.
        function: May be called twice with one module, if another thread is importing it now.
    """
    sys.meta_path.insert(0, AfterImport(name, function))
    if name in sys.modules:
        function(import_module(name))  # waits for a thread that still executes the module
