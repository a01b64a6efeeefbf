"""Pairs of texts from files: two plain files whose lines are pairs, or JSON lines."""

import json
import re
from pathlib import Path

from hf_targets.data.pair_columns import PairColumns
from hf_targets.data.references import Pairs
from hf_targets.data.text_files import COMPRESSIONS, read_lines, without_compression

JSON_LINES = ".jsonl"
_WORDS_OF_SPLITS = {"train": "train", "validation": "valid|validation|val|dev", "test": "test"}


def read_pair_of_files(source: Path, target: Path) -> list[tuple[str, str]]:
    r"""Return the pairs of two files, of which line n of one translates line n of the other.

    Only "\\n" ends a line, as other line ends occur within lines of web text. White space around a line is removed.

    Raises:
        ValueError: If they have different numbers of lines, or one cannot be read.
    """
    sources, targets = ([line.strip() for line in read_lines(file, newline="\n")] for file in (source, target))
    if len(sources) != len(targets):
        raise ValueError(
            f"line n of one file must translate line n of the other, and {source} has {len(sources)} lines where "
            f"{target} has {len(targets)}; give the two files of one corpus"
        )
    return list(zip(sources, targets, strict=True))


def read_json_lines(path: Path, columns: PairColumns) -> Pairs:
    """Return the pairs of a file with a JSON object in each line: with `translation`, or with two columns.

    A target may be a list of texts.

    Raises:
        ValueError: If a line is no such object, or the file cannot be read.
    """
    pairs = []
    for number, line in enumerate(read_lines(path, newline="\n"), start=1):
        where = f"line {number} of {path}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where} must be JSON, got {line[:60]!r} ({error}); write an object a line") from error
        pairs.append(columns.of_record(record, where))
    return pairs


def file_pairs(path: Path, columns: PairColumns) -> dict[str, Pairs] | None:
    """Return the pairs of each split that files have, or None if `path` names neither such files nor their folder.

    Args:
        path: A folder with two files (`train.de.gz` and `train.en.gz`) or one of JSON lines (`train.jsonl`) for each
            split, whose names begin with train, valid, validation, val, dev or test; one file of JSON lines; or the
            common begin of two files (`mine/train`). Files are plain, .gz or .xz.
    Raises:
        ValueError: If a split has several files, one without the other, or one that cannot be read.
    """
    if path.is_dir():
        return _folder_pairs(path, columns)
    if path.is_file():
        if without_compression(path.name).endswith(JSON_LINES):
            return {"train": read_json_lines(path, columns)}
        raise ValueError(
            f"one file of pairs ends with {JSON_LINES} (.gz or .xz may follow), got {path}; of two files give the "
            f"common begin of their names, without language"
        )
    beside = [child for child in _children(path.parent) if child.name.startswith(f"{path.name}.")]
    files = _by_begin(beside, columns).get(path.name)
    return None if files is None else {"train": _read(files, columns)}


def _folder_pairs(folder: Path, columns: PairColumns) -> dict[str, Pairs] | None:
    splits = {
        split: [child for child in _children(folder) if re.match(rf"({words})(?![a-z])", child.name)]
        for split, words in _WORDS_OF_SPLITS.items()
    }
    found = {split: _by_begin(files, columns) for split, files in splits.items()}
    if not any(found.values()):
        there = {without_compression(file.name).rpartition(".")[2] for files in splits.values() for file in files}
        if languages := sorted(end for end in there if re.fullmatch(r"[a-z]{2}([_-]\w+)?", end)):
            raise ValueError(
                f"{folder} has no file for {columns.source_lang!r} or {columns.target_lang!r}; it has files for "
                f"{languages}: give two of these as source_lang and target_lang"
            )
        return None
    for split, files in found.items():
        if len(files) > 1:
            raise ValueError(
                f"a folder has the files of one corpus for each split, and for {split} {folder} has {sorted(files)}; "
                f"move the others into a folder of their own"
            )
    return {split: _read(next(iter(files.values())), columns) for split, files in found.items() if files}


def _by_begin(files: list[Path], columns: PairColumns) -> dict[str, list[Path]]:
    """Return the files of JSON lines, and of the two languages, by their names without language and compression."""
    begins: dict[str, list[Path]] = {}
    for file in files:
        begin, _, end = without_compression(file.name).rpartition(".")
        if f".{end}" == JSON_LINES or end in (columns.source_lang, columns.target_lang):
            begins.setdefault(begin, []).append(file)
    return begins


def _read(files: list[Path], columns: PairColumns) -> Pairs:
    names = [without_compression(file.name) for file in files]
    if len(names) == 1 and names[0].endswith(JSON_LINES):
        return read_json_lines(files[0], columns)
    if columns.named:
        raise ValueError(
            f"source_column and target_column choose within {JSON_LINES} and data sets, and "
            f"{[file.name for file in files]} are plain text; leave them out"
        )
    sides = [[file for file in files if without_compression(file.name).endswith(f".{side}")] for side in columns.sides]
    if len(files) != 2 or [len(side) for side in sides] != [1, 1]:
        begin = names[0].rpartition(".")[0]
        raise ValueError(
            f"pairs need one file for each language, {begin}.{columns.source_lang} and {begin}.{columns.target_lang} "
            f"({', '.join(filter(None, COMPRESSIONS))} may follow), and {files[0].parent} has "
            f"{[file.name for file in files]}; add the other one, remove what is there twice, or name other languages"
        )
    return read_pair_of_files(sides[0][0], sides[1][0])


def _children(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_file()) if folder.is_dir() else []
