"""Texts of a user's files, for phrases to come from."""

import os
from collections.abc import Sequence
from pathlib import Path


def read_documents(paths: Sequence[str]) -> dict[str, str]:
    """Return texts by the names of their files, with as many folders before a name as tell it from the others.

    Raises:
        ValueError: If `paths` is one path, or a file cannot be read, is not UTF-8, has no text, or is given twice.
    """
    if isinstance(paths, str | os.PathLike):
        raise ValueError(f"paths must be a list of files, got {str(paths)!r}; put it in a list")
    files = [Path(path).resolve() for path in paths]
    if twice := sorted({str(file.name) for file in files if files.count(file) > 1}):
        raise ValueError(f"a document must be given once, got {', '.join(twice)} twice; leave one out")
    texts = [_read_text(path) for path in paths]
    for path, text in zip(paths, texts, strict=True):
        if not text.strip():
            raise ValueError(f"a document must have text, and {path} has none; leave it out")
    depth = 1
    while len({file.parts[-depth:] for file in files}) < len(files):
        depth += 1
    return {"/".join(file.parts[-depth:]): text for file, text in zip(files, texts, strict=True)}


def read_phrase_list(path: str) -> list[str]:
    """Return the lines of a file that are not blank.

    Raises:
        ValueError: If it cannot be read, is not UTF-8, or has none.
    """
    lines = [line for line in _read_text(path).splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"a file of phrases must have one a line, and {path} has none; write some, or leave it out")
    return lines


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"a text file must be UTF-8, and {path} is not ({error}); convert it") from error
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}; give the path of a text file") from error
