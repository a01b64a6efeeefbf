"""How a program ends: misuse with one line and exit code 2, a defect of the program with its traceback."""

import os
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from traceback import FrameSummary, extract_tb
from types import TracebackType

from hf_targets.training.settings_files import read_settings

MISUSE_CODE = 2
"""Exit code of a program that was called wrongly, as of argparse."""

_HEAD_START = 3.0
"""Seconds that the process that speaks has before another one ends."""

_PACKAGE = Path(__file__).parents[1]
_LOADERS = ("from_pretrained", "load_dataset", "load_from_disk")
"""Functions that load what a user names; what they raise of these types is about that name."""


def end_on_misuse(settings_file: str, named: Collection[str]) -> None:
    """Let misuse end this process with its message alone; defects keep their traceback.

    Misuse is: a ValueError that our code or the program itself raises, or any ValueError out of `settings_file`; an
    OSError about a path that the settings name; an OSError or ValueError out of `from_pretrained` or `load_dataset`.
    Of several processes the first one prints it.

    Args:
        settings_file: The module that reads the settings.
        named: Values of settings, to which more may be added later.
    """

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if is_misuse(error, extract_tb(traceback), settings_file, named):
            name = _name_loaded(traceback)
            text = _missing_model(name) or f"{_if_unnamed(name, error)}{_one_line(error)}"
            end_with(f"{Path(sys.argv[0]).name}: {text}")
        sys.__excepthook__(kind, error, traceback)

    sys.excepthook = hook


def end_with(text: str, code: int = MISUSE_CODE) -> None:
    """End the process with a text on the standard error, printed by one of several processes."""
    if is_first_process():
        print(text, file=sys.stderr, flush=True)
    else:
        time.sleep(_HEAD_START)  # the first process to end makes torchrun end the others
    sys.exit(code)


def is_first_process() -> bool:
    """Return whether this is the first of the processes that `torchrun` or `accelerate launch` started."""
    return os.environ.get("RANK", "0") == "0"


def is_misuse(
    error: BaseException, frames: Collection[FrameSummary], settings_file: str, named: Collection[str]
) -> bool:
    """Return whether an error is the user's, and its message is all that the user needs."""
    frames = list(frames)
    if not frames or not isinstance(error, OSError | ValueError):
        return False
    if any(frame.name in _LOADERS for frame in frames) and _is_raised_on_purpose(frames[-1]):
        return True
    if isinstance(error, OSError):
        return any(_is_at(path, name) for path in _paths(error) for name in named)
    last = Path(frames[-1].filename).resolve()
    is_ours = last.is_relative_to(_PACKAGE) or last == Path(sys.argv[0]).resolve()
    is_of_settings = any(frame.filename == settings_file for frame in frames)
    return is_of_settings or (is_ours and _is_raised_on_purpose(frames[-1]))


def _is_raised_on_purpose(frame: FrameSummary) -> bool:
    """Return whether the last line is a `raise`, and not a call into C that raises, such as `int("x")`."""
    return (frame.line or "").startswith("raise")


def _paths(error: OSError) -> Iterator[Path]:
    for path in (error.filename, error.filename2):
        if isinstance(path, str | bytes | os.PathLike):
            yield Path(os.fsdecode(path)).absolute()


def _is_at(path: Path, name: str) -> bool:
    """Return whether a path is the one of this name, in that folder, or a folder that it should lie in."""
    if not name or "\0" in name:
        return False
    given = Path(name).expanduser().absolute()
    return path.is_relative_to(given) or (given.is_relative_to(path) and path != Path(path.anchor))


def _name_loaded(traceback: TracebackType | None) -> str | None:
    """Return what `from_pretrained` was to load; None if the error is not its."""
    while traceback is not None:
        values = traceback.tb_frame.f_locals
        name = values.get("pretrained_model_name_or_path")
        if traceback.tb_frame.f_code.co_name in _LOADERS and isinstance(name, str):
            return name
        traceback = traceback.tb_next
    return None


def _if_unnamed(name: str | None, error: BaseException) -> str:
    return "" if name is None or name in str(error) else f"{name} cannot be loaded: "


def _missing_model(name: str | None) -> str | None:
    """Return what to do about a folder of `runs` without a model: the recipe that it is named after makes one.

    With which settings is told where a file of them writes into that folder, or is named after it.
    """
    folder = Path(name or "")
    if folder.parts[:1] != ("runs",) or len(folder.parts) < 2 or (folder / "config.json").is_file():
        return None
    program = Path(sys.argv[0])
    recipes = next((path for path in program.absolute().parents if (path / "settings").is_dir()), program.parent)
    recipe, settings = recipes / f"{folder.parts[1]}.py", recipes / "settings" / folder.parts[1]
    if not recipe.is_file():
        return None
    files = {file: _output_dir(file) for file in sorted(settings.glob("*.yaml"))}
    named = [file for file in files if file.stem in folder.parts[2:3]]
    # of a folder inside another one, the files that write into the inner one come first
    writing = [file for parent in (folder, *folder.parents) for file in files if files[file] == parent]
    file = next(iter([*writing, *named]), None)
    shown = [os.path.relpath(path) for path in (recipe, file) if path is not None]
    return f"there is no trained model in {name}; train it first: python {' '.join(shown)}"


def _output_dir(file: Path) -> Path | None:
    try:
        return Path(read_settings(file)["output_dir"])
    except (ValueError, KeyError, TypeError):
        return None


def _one_line(error: BaseException) -> str:
    """Return the message of an error, with line ends as spaces; of an OSError, its reason and its path."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return " ".join(str(error).split())
