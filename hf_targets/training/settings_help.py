"""What a recipe says of itself: how to start it, and its settings on about a screen."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, fields
from inspect import get_annotations
from pathlib import Path
from textwrap import fill
from typing import Any

from transformers import TrainingArguments

PLUGINS_HELP = "Modules or Python files of your own, imported first: they register heads, samplers or miners."
_COLUMN = 34
_OWN = "This program"
_THEIRS = "transformers.TrainingArguments"


def settings_files(program: Path) -> list[Path]:
    """Return the settings files of a recipe or a benchmark, `settings/NAME/*.yaml` beside it or one folder above."""
    beside = program.parent / "settings" / program.stem
    above = program.parent.parent / "settings" / program.parent.name / program.stem
    return sorted(beside.glob("*.yaml")) or sorted(above.glob("*.yaml"))


def start_text(program: Path, dataclass_types: Sequence[type]) -> str:
    """Return what a program does, by the first paragraph of its docstring, how to start it, and its settings files."""
    files = settings_files(program)
    lines = [*_description(), _usage(program, dataclass_types), ""]
    if files:
        smallest = next((file for file in files if file.stem == "smoke"), files[0])
        lines += ["settings files:", *(_described(file) for file in files), ""]
        lines += [f"start with: python {program} {smallest}"]
    else:
        lines += [f"start with a setting, for example: python {program} --help"]
    return "\n".join([*lines, "--help lists the settings"])


def help_text(program: Path, dataclass_types: Sequence[type], *, everything: bool) -> str:
    """Return the settings in groups, the program's own first, one a line with its default and its help.

    Args:
        everything: Whether to list the settings of Transformers too, and the help texts whole, on several lines.
    """
    groups: dict[str, list[Field]] = {_OWN: []}
    for kind in dataclass_types:
        for entry in fields(kind):
            if entry.init:
                groups.setdefault(_title(kind, entry.name), []).append(entry)
    lines = [*_description(), _usage(program, dataclass_types)]
    trains = groups.pop(_THEIRS, None)
    for title, entries in groups.items():
        if not entries:
            continue
        lines += ["", f"{title}:", *(_line(entry, everything) for entry in entries)]
    lines += ["", "Every program:", _row("--plugins", PLUGINS_HELP, everything)]
    if trains is not None and everything:
        lines += ["", f"{_THEIRS}:", *(_line(entry, everything) for entry in trains)]
    elif trains is not None:
        some = "--output_dir, --num_train_epochs, --max_steps, --learning_rate and --per_device_train_batch_size"
        lines += ["", fill(f"All settings of {_THEIRS} are known too, such as {some}.", _width())]
    return "\n".join([*lines, "", "--help_all lists all settings, with their whole help texts."])


def _description() -> Iterator[str]:
    doc = (getattr(sys.modules.get("__main__"), "__doc__", None) or "").strip()
    if doc:
        yield from (doc.split("\n\n")[0], "")


def _usage(program: Path, dataclass_types: Sequence[type]) -> str:
    leading = [kind.leading_setting for kind in dataclass_types if hasattr(kind, "leading_setting")]
    first = "".join(f" [{name} ...]" for name in leading)
    return f"usage: {program.name} [settings.yaml]{first} [--setting value ...]"


def _first_comment(file: Path) -> str:
    """Return the first sentence of the comment that a settings file begins with."""
    comment: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.removeprefix("#").strip())
    return _first_sentence(" ".join(comment))


def _first_sentence(text: str) -> str:
    return text.split(". ")[0].removesuffix(".") + "." if text else ""


def _title(kind: type, name: str) -> str:
    """Return the title of the class that first defined a field."""
    home = next(cls for cls in reversed(kind.__mro__) if name in get_annotations(cls))
    if home is TrainingArguments:
        return _THEIRS
    if issubclass(home, TrainingArguments):
        return "Training"
    return _OWN if home is kind else getattr(home, "settings_title", _OWN)


def _line(entry: Field, everything: bool) -> str:
    default = entry.default_factory() if entry.default_factory is not MISSING else entry.default
    shown = _shown(default)
    room = max(_COLUMN - len(f"  --{entry.name} ..."), 8)
    if not everything and len(shown) > room + 3:
        shown = f"{shown[:room].rstrip()}..."
    words = [f"--{entry.name}", shown]
    return _row(" ".join(filter(None, words)), str(entry.metadata.get("help", "")), everything)


def _row(setting: str, told: str, everything: bool) -> str:
    begin = f"  {setting}".ljust(_COLUMN) + "  "
    told = " ".join(told.split())
    if not everything:
        return _shortened(begin + told)
    return fill(begin + told, _width(), subsequent_indent=" " * (_COLUMN + 2), break_long_words=False)


def _described(file: Path) -> str:
    """Return a file and what its first comment says, on one line or, if that is too long, below it."""
    comment = _first_comment(file)
    line = f"  {file}  {comment}"
    if len(line) <= _width() or not comment:
        return line.rstrip()
    indent = " " * 6
    return f"  {file}\n" + fill(comment, _width(), initial_indent=indent, subsequent_indent=indent)


def _shortened(line: str) -> str:
    return line.rstrip() if len(line) <= _width() else f"{line[: _width() - 4].rstrip(' ,;.')} ..."


def _shown(default: Any) -> str:
    if default is MISSING:
        return "(required)"
    if default is None:
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return " ".join(map(str, default)) if isinstance(default, list | tuple) else str(default).strip()


def _width() -> int:
    return max(80, min(120, shutil.get_terminal_size((120, 40)).columns))
