"""Questions with documents and reference answers, read from a file with ALCE's field names."""

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_targets.data.words import check_letters

Question = Mapping[str, Any]
"""`question`, `docs` with `title` and `text`, `qa_pairs` with `question` and `short_answers`, and `annotations` with
`long_answer`. `sample_id` names it, where it is there."""


def load_questions(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the questions of a file: JSON lines or one JSON list, compressed by gzip or not.

    Raises:
        ValueError: If the file cannot be read, is not JSON, or has no question; or if a question lacks its text or its
            documents, or a document its title or text. The message names the line, or in a list the number.
    Source: of the fields, Gao et al. 2023, "Enabling Large Language Models to Generate Text with Citations".
    """
    items = []
    for where, item in _items(Path(path), _read(Path(path))):
        _check(item, f"{path}, {where}")
        items.append(item)
    if not items:
        raise ValueError(f"a file of questions must have one or more, and {path} has none; give another file")
    return items


def name_of(question: Question) -> str:
    """Return what an error calls a question: its `sample_id`, or else its text, in quotes."""
    return repr(question.get("sample_id") or question.get("question"))


def _read(path: Path) -> str:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"a file of questions must be UTF-8, and {path} is not ({error}); convert it") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is no whole gzip file ({error}); copy it again") from error
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}; give the path of a file of questions") from error


def _items(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """Yield where each item stands, and the item."""
    if text.lstrip().startswith("["):
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is not JSON, line {error.lineno}: {error.msg}; mend or leave out") from error
        except ValueError as error:  # of a number of too many digits
            raise ValueError(f"{path} is not JSON: {error}; mend it") from error
        except RecursionError as error:
            raise ValueError(f"{path} is nested too deeply for a list of questions; mend it") from error
        yield from ((f"question {number}", item) for number, item in enumerate(content, start=1))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except ValueError as error:  # of a number of too many digits, too
                told = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
                raise ValueError(f"{path}, line {number} is not JSON: {told}; mend it or leave it out") from error
            except RecursionError as error:
                raise ValueError(f"{path}, line {number} is nested too deeply for a question; leave it out") from error


def _check(item: Any, where: str) -> None:
    if not isinstance(item, dict):
        raise ValueError(f"{where}: a question must be an object with question and docs, got {type(item).__name__}")
    if not isinstance(item.get("question"), str) or not item["question"].strip():
        raise ValueError(f"{where}: question must be a text, got {item.get('question')!r}; leave the item out")
    check_letters(item["question"], f"{where}: question")
    documents = item.get("docs")
    if not isinstance(documents, list) or not documents:
        raise ValueError(f"{where}: docs must list one document or more, got {documents!r}; leave the item out")
    for number, document in enumerate(documents, start=1):
        for field in ("title", "text"):
            value = document.get(field) if isinstance(document, dict) else None
            if not isinstance(value, str) or (field == "text" and not value.strip()):
                raise ValueError(f"{where}: document {number} must have a {field}, got {value!r}; leave it out")
            check_letters(value, f"{where}: the {field} of document {number}")
