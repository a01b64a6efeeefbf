"""Where the code and the settings depart from a paper or a published program: the page recipes/departures.md.

The page is made of the marks `Departs:` in comments and docstrings. After a change of one:
    python .ci/departures.py
"""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "recipes" / "departures.md"
MARK = "Departs:"

_HEAD = f"""# Where we depart from the papers and the published programs

Made by `python .ci/departures.py` of the marks `{MARK}` in the code and the settings. What a paper leaves open
is on the page of each target, under *Decisions*.
"""
_ENDS = re.compile(r"\s*(# )?(Args|Attributes|Raises|Returns|Source|Related|Departs|Not given[\w ]*):|.*>>> |.*\"\"\"$")
_NAMED = re.compile(r"( *)(?:class|def) (\w+)")


def departures(root: Path = ROOT) -> Iterator[tuple[str, str, str]]:
    """Yield for each mark, in the order of files: the file, the class or function, and what the mark says."""
    files = [path for folder in ("hf_targets", "recipes") for path in sorted((root / folder).rglob("*"))]
    for path in files:
        if path.suffix not in (".py", ".yaml"):
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            if MARK in line:
                yield path.relative_to(root).as_posix(), _place(lines[:number], line), _told(lines[number:])


def _place(before: list[str], line: str) -> str:
    """Return the name of the class or function that a line lies in, "" outside of all."""
    width = len(line) - len(line.lstrip())
    for each in reversed(before):
        if (found := _NAMED.match(each)) and len(found[1]) < width:
            return found[2]
    return ""


def _told(lines: list[str]) -> str:
    """Return what a mark in the first line says, up to the end of its comment or of its part of a docstring."""
    first, is_comment = lines[0].split(MARK, 1)[1], "#" in lines[0].split(MARK)[0]
    parts = [first.strip().removesuffix('"""')]
    for line in lines[1:] if not first.rstrip().endswith('"""') else []:
        if not line.strip() or (is_comment and not line.lstrip().startswith("#")) or _ENDS.match(line):
            break
        parts.append(line.strip().removeprefix("#").strip())
    told = " ".join(parts)
    return told[:1].upper() + told[1:].removesuffix(".") + "."


def page(root: Path = ROOT) -> str:
    """Return the page: a table for each folder."""
    tables: dict[str, list[str]] = {}
    for file, place, told in departures(root):
        parts = file.split("/")
        folder = "/".join(parts[:2] if len(parts) > 2 else parts[:1])
        name = file.removeprefix(f"{folder}/")
        where = f"`{name}`" + (f", `{place}`" if place else "")
        tables.setdefault(folder, []).append(f"| {where} | {told.replace('|', chr(92) + '|')} |")
    head = ["| where | departure |", "| --- | --- |"]
    shown = ["\n".join([f"## `{folder}`", "", *head, *rows]) for folder, rows in tables.items()]
    return "\n\n".join([_HEAD.rstrip(), *shown]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
