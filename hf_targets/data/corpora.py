"""Text with the splits train, validation and test: shipped with Python, in local files, or on the Hub."""

import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import datasets
from datasets import Dataset, DatasetDict
from datasets.data_files import DataFilesDict, get_data_patterns
from datasets.exceptions import DatasetsError

from hf_targets.data.documentation import documentation_rows

SPLITS = ("train", "validation", "test")
DATA_VARIABLE = "HF_TARGETS_DATA"
"""The environment variable that names the folder with the folders of known corpora."""
_BENCHMARKS = ("ptb", "wikitext-2", "wikitext-103", "us-code-legal")
KNOWN_FILES: dict[str, tuple[str, tuple[str | None, ...], str, str]] = {
    "lm1b-sample": ("lm1b-sample", (None,), "1b_benchmark.dev.tokens", "1b_benchmark.test.tokens"),
    "multi30k": ("multi30k-en-de", ("train",), "val", "test_2016_flickr"),
    "iwslt14": ("iwslt14-de-en", ("train", "train_sample"), "valid", "test"),
    **{
        f"opus-multidomain:{one}": ("opus-multidomain-de-en", (f"{one}.train", None), f"{one}.dev", f"{one}.test")
        for one in ("law", "medical", "it", "koran")
    },
}
"""Of known corpora: the folder, and how the files to train on, to validate on and to test on begin.

Those to train on are the first that are there. With None they may be missing: train is then the text to validate on,
and validation and test are the halves of the test text.
"""
_READERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
_TEXT_SUFFIXES = (".txt", ".txt.gz", ".txt.xz", ".tokens", ".raw")
_COMPRESSED = (".gz", ".xz", ".bz2", ".zst")
_MARK = "\ufeff"  # of byte order, with which a text may begin
_TEXT8_ROW = 20_000
"""Words in a row of text8."""

_Row = TypeVar("_Row")


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
            `"ptb"`, `"wikitext-2"`, `"wikitext-103"`, `"us-code-legal"`: the folder of that name below the one that
            `HF_TARGETS_DATA` names, a line a row (if there is none, WikiText comes from the Hub);
            `"text8"`: likewise, in rows of whole words that end with a space, as it has no lines: 90% of its characters
            to train on, 5% to validate and 5% to test;
            `"opus-multidomain:law"`, `:medical`, `:it`, `:koran`: likewise, the English sentences of a domain, and
            `"lm1b-sample"`, from the One Billion Word benchmark (`KNOWN_FILES`);
            a text file, a line a row, or a file of JSON lines, CSV or Parquet;
            a folder written by `save_to_disk`; anything else that `datasets.load_dataset` takes, such as a folder with
            a file for each split or a name on the Hub.
            A missing validation or test split is the end of train, 5% of its rows each.
        config_name: Which configuration of a data set to load.
        text_column: The column of a data set that holds the text; null is a blank row.
        max_train_words: Keep only so many whitespace-separated words of `train`, cutting its last row after a word. In
            a folder with a text file for each split, no more of `train` is read; one file for all splits is read whole,
            as validation and test are its end.
    Raises:
        ValueError: If the corpus is not found or cannot be read, or a split has no words.
    """
    name = os.fspath(name_or_path)
    if max_train_words is not None and max_train_words < 1:
        raise ValueError(f"max_train_words must be at least 1, got {max_train_words}; use None for the whole split")
    rows = _known_rows(name, max_train_words)
    if rows is None:
        parts = load_parts(name, config_name, max_train_words)
        if lacking := [split for split, part in parts.items() if text_column not in part.column_names]:
            raise ValueError(f"{name!r} has no column {text_column!r}, but {parts[lacking[0]].column_names}")
        rows = {split: [_ended(text or "") for text in part[text_column]] for split, part in parts.items()}
        for texts in rows.values():
            texts[:1] = [text.removeprefix(_MARK) for text in texts[:1]]
    elif config_name is not None or text_column != "text":
        raise ValueError(
            f"config_name and text_column choose within a data set, and {name!r} is plain text; leave them out"
        )
    kept = split_rows({part: len(texts) for part, texts in rows.items()}, name)
    rows = {split: rows[part][numbers.start : numbers.stop] for split, (part, numbers) in kept.items()}
    for split in SPLITS:
        if not any(text.strip() for text in rows[split]):
            raise ValueError(f"every split needs words, and {split} of {name!r} has none; give a longer text")
    if max_train_words is not None:
        rows["train"] = first_words(rows["train"], max_train_words)
    text = datasets.Features({"text": datasets.Value("string")})
    return DatasetDict([(split, Dataset.from_dict({"text": rows[split]}, features=text)) for split in SPLITS])


def documents_of(rows: Iterable[str], num_words: int = 100) -> dict[str, str]:
    """Return consecutive rows joined into documents of about `num_words` words, by their number; none is empty.

    Args:
        rows: Paragraphs or lines of one text.
        num_words: White-space words at which a document ends, at the end of a row.

    >>> documents_of(["one two\\n", "\\n", "three\\n", "four\\n"], num_words=3)
    {'0': 'one two\\n\\nthree\\n', '1': 'four\\n'}
    """
    documents, parts, words = {}, [], 0
    for row in rows:
        parts.append(row)
        words += len(row.split())
        if words >= num_words:
            documents[str(len(documents))] = "".join(parts)
            parts, words = [], 0
    if words:
        documents[str(len(documents))] = "".join(parts)
    return documents


def load_parts(
    name_or_path: str, config_name: str | None = None, max_train_words: int | None = None
) -> dict[str, Dataset]:
    """Return the splits of a data set by their names; one without splits is train.

    Args:
        name_or_path: A file, a folder written by `save_to_disk`, or anything else that `datasets.load_dataset` takes.
        config_name: Which configuration of a data set to load.
        max_train_words: Words after which no more rows of train need be read, if there are a validation and a test.
    Raises:
        ValueError: If it cannot be loaded.
    """
    path = Path(name_or_path).expanduser()
    try:
        with without_progress_bars():
            if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
                found: Any = datasets.load_from_disk(str(path))
            elif path.is_file():
                found = read_file(path)
            elif path.is_dir() and any(child.name.endswith(_TEXT_SUFFIXES) for child in path.iterdir()):
                cuts, files = max_train_words is not None, _text_files(str(path))
                found = datasets.load_dataset("text", data_files=files, streaming=cuts, encoding="utf-8-sig")
                if cuts:
                    most = {"train": max_train_words} if len(found) == len(SPLITS) else {}
                    found = {split: _first_rows(part, most.get(str(split))) for split, part in found.items()}
            else:
                found = datasets.load_dataset(name_or_path, config_name)
    except (OSError, ValueError, RuntimeError, EOFError, DatasetsError) as error:
        raise ValueError(
            f"{name_or_path!r} is neither a local file or folder that can be read nor a data set that loads from the "
            f"Hub ({type(error).__name__}: {error.__cause__ or error}); check the name and {config_name=}"
        ) from error
    return {str(split): part for split, part in (found if isinstance(found, dict) else {"train": found}).items()}


def read_file(file: Path) -> Dataset:
    """Return the rows of a file, plain or compressed; one that is no JSON, CSV or Parquet is text, a line a row."""
    suffixes = [suffix for suffix in file.suffixes if suffix not in _COMPRESSED]
    reader = _READERS.get(suffixes[-1], "text") if suffixes else "text"
    options: dict[str, Any] = {"encoding": "utf-8-sig"} if reader == "text" else {}
    with without_progress_bars():
        return datasets.load_dataset(reader, data_files=str(file), split="train", **options)


def file_below(folder: str, name: str) -> Path | None:
    """Return a file, plain, .gz or .xz, in a folder below the one that `HF_TARGETS_DATA` names; None if there is none.

    Raises:
        ValueError: If there is no such folder.
    """
    data = os.environ.get(DATA_VARIABLE)
    if not data or not Path(data, folder).is_dir():
        raise ValueError(
            f"{name} is read from the folder {folder} below the one that {DATA_VARIABLE} names, got "
            f"{DATA_VARIABLE}={data!r}; put it there, or give the path of your own text"
        )
    return next((file for end in ("", ".gz", ".xz") if (file := Path(data, folder, f"{name}{end}")).is_file()), None)


def known_parts(name: str, ends: Sequence[str], read: Callable[..., list[_Row]]) -> dict[str, list[_Row]] | None:
    """Return the rows of each split of a corpus in `KNOWN_FILES`, or None if it is not there.

    Args:
        ends: Of the names of files of a split, such as (".de", ".en"); `read` is called with one file for each.
    Raises:
        ValueError: If a file is missing.
    """
    if name not in KNOWN_FILES:
        return None
    folder, trains, validation, test = KNOWN_FILES[name]

    def files_of(begin: str) -> list[Path | None]:
        return [file_below(folder, f"{begin}{end}") for end in ends]

    def rows_of(begin: str) -> list[_Row]:
        files = files_of(begin)
        if None in files:
            raise ValueError(f"{name!r} needs {begin} with {ends} (plain, .gz or .xz) in the folder {folder}")
        return read(*files)

    train = next((begin for begin in trains if begin is None or None not in files_of(begin)), trains[0])
    if train is not None:
        return {"train": rows_of(train), "validation": rows_of(validation), "test": rows_of(test)}
    held_out = rows_of(test)
    half = len(held_out) // 2
    return {"train": rows_of(validation), "validation": held_out[:half], "test": held_out[half:]}


def split_rows(sizes: Mapping[str, int], name: str) -> dict[str, tuple[str, range]]:
    """Return for each split the part of a corpus that it is taken from, and which rows of that part.

    A missing validation or test split is the end of train, 5% of its rows each, without overlap.

    Args:
        sizes: Rows in each part that there is, by name; a name is a split or a word for it (valid, dev).
        name: The corpus, for errors.
    Raises:
        ValueError: If there is no train, or it has too few rows.

    >>> split_rows({"train": 40, "dev": 3}, "mine")
    {'train': ('train', range(0, 38)), 'validation': ('dev', range(0, 3)), 'test': ('train', range(38, 40))}
    """
    words = {"train": ("train",), "validation": ("valid", "dev", "validation"), "test": ("test",)}
    parts = {split: part for split in SPLITS for part in words[split] if part in sizes}
    missing = [split for split in SPLITS if split not in parts]
    end = sizes[parts["train"]] if "train" in parts else 0
    size = max(1, end // 20)
    if end <= size * len(missing) and missing:
        raise ValueError(
            f"a corpus needs a split train, with rows left once {missing} are taken from it, and {name!r} has "
            f"{dict(sizes)}; give a longer text, or a folder with one file for each split"
        )
    whole = {split: (part, range(sizes[part])) for split, part in parts.items()}
    for split in reversed(missing):
        whole[split] = (parts["train"], range(end - size, end))
        end -= size
    whole["train"] = (parts["train"], range(end))
    return {split: whole[split] for split in SPLITS}


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide the progress bars of `datasets`, and show them again afterwards if they were shown."""
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def _text_files(folder: str) -> dict[str, list[str]]:
    """Return the text files of each split of a folder; other files may lie beside them, such as notes."""
    files = DataFilesDict.from_patterns(get_data_patterns(folder), base_path=folder)
    texts = {str(split): [str(file) for file in some if file.endswith(_TEXT_SUFFIXES)] for split, some in files.items()}
    return {split: some for split, some in texts.items() if some}


def _first_rows(part: Iterable[Any], max_words: int | None) -> Dataset:
    """Return the rows of a text up to the one in which it has so many words; None: all."""
    rows, words = [], 0
    for row in part:
        rows.append(row["text"])
        words += len(row["text"].split()) if max_words is not None else 0
        if max_words is not None and words >= max_words:
            break
    return Dataset.from_dict({"text": rows}, features=datasets.Features({"text": datasets.Value("string")}))


def _known_rows(name: str, max_train_words: int | None) -> dict[str, list[str]] | None:
    """Return the rows of each split of a known corpus, or None if it is none."""
    if name in ("documentation", "documentation:topics"):
        return documentation_rows(topics_only=name == "documentation:topics")
    if name == "text8":
        file = file_below("text8", "text8")
        if file is None:
            raise ValueError("text8 is the file text8 (plain, .gz or .xz) in the folder text8; put it there")
        return _text8_rows("".join(read_file(file)["text"]))
    if name in _BENCHMARKS:
        folder = Path(os.environ.get(DATA_VARIABLE) or "", name)
        if name.startswith("wikitext") and not (folder.is_absolute() and folder.is_dir()):
            parts = load_parts("Salesforce/wikitext", f"{name}-v1")
        else:
            file_below(name, f"{name}.train.txt")
            parts = load_parts(str(folder), max_train_words=max_train_words)
        return {split: _stripped(part) for split, part in parts.items()}
    if name != "lm1b-sample" and not name.startswith("opus-"):
        return None
    return known_parts(name, [""] if name == "lm1b-sample" else [".en"], lambda file: _stripped(read_file(file)))


def _stripped(rows: Dataset) -> list[str]:
    return [line.removeprefix(_MARK).strip() + "\n" for line in rows["text"]]


def _ended(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


def _text8_rows(text: str) -> dict[str, list[str]]:
    """Return rows of words for each split; a word that lies across the border of two belongs to the first.

    Source: Mahoney, "About the test data"; Mikolov et al. 2014.
    """
    words, rows, begin = text.split(), {}, 0
    ends = list(accumulate(len(word) + 1 for word in words))  # of words and their spaces
    for split, share in zip(SPLITS, (0.9, 0.95, 1.0), strict=True):
        border = bisect_left(ends, round(share * (ends[-1] - 1)) + 1) + 1
        starts = range(begin, border, _TEXT8_ROW)
        rows[split] = [" ".join(words[start : min(start + _TEXT8_ROW, border)]) + " " for start in starts]
        begin = border
    return rows


def first_words(rows: Iterable[str], count: int) -> list[str]:
    """Return rows up to their first `count` words, 1 or more, cutting the last of them after a word."""
    if count < 1:
        raise ValueError(f"a text must be cut to 1 word or more, got {count}; use None for the whole text")
    rows = list(rows)
    for index, text in enumerate(rows):
        ends = [word.end() for word in re.finditer(r"\S+", text)]
        if len(ends) >= count:
            return [*rows[:index], text if len(ends) == count else _ended(text[: ends[count - 1]])]
        count -= len(ends)
    return rows
