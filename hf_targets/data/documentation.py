"""The text that ships with Python: the language reference, and docstrings of the standard library."""

import ast
import hashlib
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

MIN_DOCSTRING_WORDS = 20
_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "pydoc_data"}


def documentation_rows(*, topics_only: bool) -> dict[str, list[str]]:
    """Return paragraphs for train, validation and test, by a hash of their document's name: the same in each process.

    No paragraph is there twice, in whichever split.
    """
    rows: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    seen: set[str] = set()
    for name, text in documentation_documents(topics_only=topics_only):
        tenth = int.from_bytes(hashlib.sha256(name.encode()).digest()) % 10
        split = {8: "validation", 9: "test"}.get(tenth, "train")
        without_underlines = re.sub(r"^([*=~^-])\1{2,}$\n?", "", text, flags=re.MULTILINE)
        for paragraph in re.split(r"\n\s*\n", without_underlines):
            words = " ".join(paragraph.split())
            if words and words not in seen:
                seen.add(words)
                rows[split].append(paragraph.strip("\n").rstrip() + "\n\n")
    return rows


def documentation_documents(*, topics_only: bool = False) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of each topic of the language reference, then of each standard library module's docstrings.

    Modules are parsed, never imported. Docstrings of fewer than 20 words, tests and installed packages are left out.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ValueError(
            "the documentation corpus needs the module pydoc_data, which this Python was stripped of; "
            "install a full CPython or give load_corpus the path of your own text"
        ) from error
    for name in sorted(topics):
        yield f"pydoc_data.topics/{name}", topics[name]
    library = Path(sysconfig.get_path("stdlib"))
    modules: list[Path] = []
    for folder, subfolders, files in () if topics_only else os.walk(library):
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED_FOLDERS]
        modules += [Path(folder, name).relative_to(library) for name in files if name.endswith(".py")]
    for module in sorted(modules):
        try:
            with warnings.catch_warnings(action="ignore"):  # invalid escapes in somebody else's source
                tree = ast.parse((library / module).read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue
        yield module.as_posix(), "\n\n".join(_docstrings(tree))


def _docstrings(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    text = ast.get_docstring(node) or ""
    if len(text.split()) >= MIN_DOCSTRING_WORDS:
        yield text
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(child)
