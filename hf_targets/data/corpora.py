"""Text with the splits train, validation and test: shipped with Python, in local files, or on the Hub."""

import ast
import hashlib
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

import datasets
from datasets import Dataset, DatasetDict

from hf_targets.data.hub_data import load_named, load_parts, without_progress_bars
from hf_targets.data.splits import SPLIT_WORDS, SPLITS, of_dev_and_test, split_rows
from hf_targets.data.text8 import text8_rows
from hf_targets.data.text_files import DATA_VARIABLE, files_below, read_lines

MIN_DOCSTRING_WORDS = 20
_TEXT_SUFFIXES = (".txt", ".txt.gz", ".tokens", ".raw")
_DOMAINS = "opus-multidomain:"
_WIKITEXTS = ("wikitext-2", "wikitext-103")
_LM1B_FILES = ("1b_benchmark.dev.tokens", "1b_benchmark.test.tokens")
_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "pydoc_data"}


@without_progress_bars()
def load_corpus(
    name_or_path: str | os.PathLike[str] = "documentation",
    *,
    config_name: str | None = None,
    text_column: str = "text",
    max_train_words: int | None = None,
) -> DatasetDict:
    """Return a corpus as the splits `train`, `validation` and `test`, each with the one column `text`.

    Each row ends with a newline (in text8 with a space), and the text of a split is its rows one after the other, with
    nothing in between.

    Args:
        name_or_path: One of
            `"documentation"`: the language reference and the docstrings that ship with this Python, a paragraph a row;
            `"documentation:topics"`: the language reference alone, about 50,000 words;
            `"ptb"`, `"wikitext-2"`, `"wikitext-103"`: the folder of that name below the one that `HF_TARGETS_DATA`
            names, a line a row (if there is none, WikiText comes from the Hub);
            `"text8"`: likewise, from the file text8 in that folder, in rows of whole words that end with a space, as it
            has no lines: 90% of its characters to train on, 5% to validate and 5% to test;
            `"us-code-legal"`: likewise, paragraphs of the United States Code;
            `"opus-multidomain:law"`, `:medical`, `:it`, `:koran`: likewise, the English sentences of a domain, from the
            folder opus-multidomain-de-en; where a domain has no file to train on, train is its dev file, and validation
            and test are the halves of its test file;
            `"lm1b-sample"`: likewise, sentences held out from the One Billion Word benchmark, one a row: as there is
            no file to train on, the splits are made as those of such a domain;
            a folder with a text file for each split, or one text file, a line a row;
            a folder written by `save_to_disk`; anything else that `datasets.load_dataset` takes.
            A missing validation or test split is the end of train, 5% of its rows each.
        config_name: Which configuration of a data set to load.
        text_column: The column of a data set that holds the text; null is a blank row.
        max_train_words: Keep only so many whitespace-separated words of `train`, cutting its last row after a word.

    Raises:
        ValueError: If the corpus is not found or cannot be read, a split has no words, or an option does not apply.
    """
    name_or_path = os.fspath(name_or_path)
    if max_train_words is not None and max_train_words < 1:
        raise ValueError(f"max_train_words must be at least 1, got {max_train_words}; use None for the whole split")
    rows = _plain_rows(name_or_path)
    if rows is None:
        rows = _data_set_rows(name_or_path, config_name, text_column)
    elif config_name is not None or text_column != "text":
        raise ValueError(
            f"config_name and text_column choose within a data set, and {name_or_path!r} is plain text; "
            f"leave them out, got config_name={config_name!r}, text_column={text_column!r}"
        )
    sizes = {part: len(texts) for part, texts in rows.items()}
    kept = split_rows(sizes, name_or_path)
    rows = {split: rows[part][numbers.start : numbers.stop] for split, (part, numbers) in kept.items()}
    for split in SPLITS:
        if not any(text.strip() for text in rows[split]):
            raise ValueError(f"every split needs words, and {split} of {name_or_path!r} has none; give a longer text")
    if max_train_words is not None:
        rows["train"] = _first_words(rows["train"], max_train_words)
    text = datasets.Features({"text": datasets.Value("string")})
    return DatasetDict([(split, Dataset.from_dict({"text": rows[split]}, features=text)) for split in SPLITS])


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


def _documentation_rows(*, topics_only: bool) -> dict[str, list[str]]:
    """Give each document to a split by a hash of its name: the same in each process, and nearly so in each Python."""
    rows: dict[str, list[str]] = {split: [] for split in SPLITS}
    seen: set[str] = set()
    for name, text in documentation_documents(topics_only=topics_only):
        tenth = int.from_bytes(hashlib.sha256(name.encode()).digest()) % 10
        split = {8: "validation", 9: "test"}.get(tenth, "train")
        without_underlines = re.sub(r"^([*=~^-])\1{2,}$\n?", "", text, flags=re.MULTILINE)
        for paragraph in re.split(r"\n\s*\n", without_underlines):
            words = " ".join(paragraph.split())
            if words and words not in seen:  # over all splits, so that none holds a paragraph of another
                seen.add(words)
                rows[split].append(paragraph.strip("\n").rstrip() + "\n\n")
    return rows


def _plain_rows(name_or_path: str) -> dict[str, list[str]] | None:
    """Return the rows of each split there is, or None if `name_or_path` does not name plain text."""
    if name_or_path in ("documentation", "documentation:topics"):
        return _documentation_rows(topics_only=name_or_path == "documentation:topics")
    if name_or_path in ("ptb", *_WIKITEXTS, "us-code-legal"):
        lines = _benchmark_lines(name_or_path)
        return {split: [line.strip() + "\n" for line in lines[split]] for split in SPLITS}
    if name_or_path == "text8":
        return text8_rows()
    if name_or_path == "lm1b-sample":
        return of_dev_and_test(*_lines_below(name_or_path, _LM1B_FILES, name_or_path))
    if name_or_path.startswith(_DOMAINS):
        return _domain_rows(name_or_path)
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return {"train": _read_lines(path)}
    if path.is_dir() and any(child.name.endswith(_TEXT_SUFFIXES) for child in path.iterdir()):
        return _folder_lines(path)
    return None


def _benchmark_lines(name: str) -> dict[str, list[str]]:
    data = os.environ.get(DATA_VARIABLE)
    if data and Path(data, name).is_dir():
        return _folder_lines(Path(data, name))
    if name in _WIKITEXTS:
        hub = load_named("Salesforce/wikitext", f"{name}-v1")
        return {split: list(hub[split]["text"]) for split in SPLITS}
    raise ValueError(
        f"{name!r} is read from the folder {name} below the one that {DATA_VARIABLE} names, "
        f"got {DATA_VARIABLE}={data!r}; put {name}.train.txt, {name}.valid.txt and {name}.test.txt there, "
        f"or give the path of a folder that has them"
    )


def _lines_below(folder: str, names: tuple[str, ...], corpus: str) -> list[list[str]]:
    return [[line.strip() + "\n" for line in _read_lines(file)] for file in files_below(folder, names, corpus)]


def _domain_rows(name: str) -> dict[str, list[str]]:
    folder, domain = "opus-multidomain-de-en", name.removeprefix(_DOMAINS)
    names = (f"{domain}.train.en", f"{domain}.dev.en", f"{domain}.test.en")
    if not any(Path(os.environ.get(DATA_VARIABLE) or "", folder).glob(f"{names[0]}*")):
        return of_dev_and_test(*_lines_below(folder, names[1:], name))
    return dict(zip(SPLITS, _lines_below(folder, names, name), strict=True))


def _folder_lines(folder: Path) -> dict[str, list[str]]:
    texts = sorted(child for child in folder.iterdir() if child.name.endswith(_TEXT_SUFFIXES))
    files: dict[str, Path] = {}
    for split, words in SPLIT_WORDS.items():
        matching = [file for file in texts if any(word in file.name for word in words)]
        if len(matching) != 1 or matching[0] in files.values():
            raise ValueError(
                f"a folder of text needs one file ({', '.join(_TEXT_SUFFIXES)}) for {split}, named with "
                f"{' or '.join(words)}, and {folder} has {[file.name for file in matching]}; rename or remove files"
            )
        files[split] = matching[0]
    return {split: _read_lines(file) for split, file in files.items()}


def _read_lines(path: Path) -> list[str]:
    return [_ended(line) for line in read_lines(path)]


def _ended(text: str | None) -> str:
    return text if text is not None and text.endswith("\n") else f"{text or ''}\n"


def _data_set_rows(name_or_path: str, config_name: str | None, text_column: str) -> dict[str, list[str]]:
    parts = load_parts(name_or_path, config_name)
    for split, part in parts.items():
        column = part.features.get(text_column)
        if not isinstance(column, datasets.Value) or column.dtype not in ("string", "large_string"):
            raise ValueError(
                f"text_column must name a column of strings, got {text_column!r}; "
                f"{split} of {name_or_path!r} has the columns {part.column_names}"
            )
    return {split: [_ended(text) for text in part[text_column]] for split, part in parts.items()}


def _first_words(rows: list[str], count: int) -> list[str]:
    for index, text in enumerate(rows):
        ends = [word.end() for word in re.finditer(r"\S+", text)]
        if len(ends) >= count:
            return [*rows[:index], text if len(ends) == count else _ended(text[: ends[count - 1]])]
        count -= len(ends)
    return rows
