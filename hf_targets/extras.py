"""Optional dependencies, imported where they are used, and releases of engines that read what is written for them."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from packaging.version import Version


def require(module: str, extra: str) -> ModuleType:
    """Return the imported `module`; if it is not installed, raise an error that names the extra of our package with it.

    Raises:
        ImportError: If `module` is not installed. A module that is installed but broken raises its own error.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise ImportError(
            f"{module} is not installed; in the source of hf_targets run: pip install '.[{extra}]'"
        ) from error


def check_engine(*packages: str, given: str | None, oldest: str = "0.0", newest: str | None = None) -> None:
    """Raise an error unless a release of an engine reads a format; without a release nothing is known.

    Args:
        packages: The names under which the engine is installed, such as `"vllm"`; the first is its own.
        given: The release that is to read the files; None: the installed one, if there is one.
        oldest, newest: The releases, of two numbers, that read the format; None: all that are known since.
    Raises:
        ValueError: If the release is another.
    """
    found = [given] if given is not None else [one for one in map(_installed, packages) if one is not None]
    wanted = f"from {oldest} on" if newest is None else f"up to {newest}"
    for release in found:
        number = Version(release).release[:2]
        if number < Version(oldest).release or (newest is not None and number > Version(newest).release):
            raise ValueError(
                f"{packages[0]} reads this format {wanted}, got {release}; install such a release, or give "
                "engine_version if another one is to read the files"
            )


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
