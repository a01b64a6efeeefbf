"""Pairs of texts, a source and its target, with the splits train, validation and test."""

import lzma
import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, Features, List, Value

from hf_targets.data.corpora import (
    KNOWN_FILES,
    SPLITS,
    file_below,
    known_parts,
    load_corpus,
    load_parts,
    read_file,
    split_rows,
)

REFERENCES = "references"
"""The column of all targets of a source, of which `target` is the first."""
_PAIR = Features({"source": Value("string"), "target": Value("string")})
_WORDS_OF_SPLITS = {"train": "train", "validation": "valid|validation|val|dev", "test": "test"}
_COMPRESSION = r"(\.gz|\.xz)?$"
_MOST_WORDS = 20
"""Of a sentence of documentation:reversed."""

Pairs = Sequence[tuple[str, str | list[str]]]
"""Source and target of each pair, or all targets of a source."""


def load_pairs(
    name_or_path: str | os.PathLike[str],
    *,
    source_lang: str,
    target_lang: str,
    config_name: str | None = None,
    source_column: str | None = None,
    target_column: str | None = None,
    max_train_pairs: int | None = None,
    max_eval_pairs: int | None = None,
) -> DatasetDict:
    """Return parallel text as the splits `train`, `validation` and `test`, with the columns `source` and `target`.

    JSON lines and data sets may have a list of texts as the target, all of them correct. In train each makes a pair; in
    the other splits they are in the column `references`, and the first of them is the target.

    Empty sides are kept, but for the targets of test: `filter_pairs` counts them and removes them from train.

    Args:
        name_or_path: One of
            `"multi30k"`: raw captions from a folder below the one that `HF_TARGETS_DATA` names (`KNOWN_FILES`);
            `"iwslt14"`: likewise, lower-cased and tokenized;
            `"opus-multidomain:law"`, `:medical`, `:it`, `:koran`: likewise;
            `"asset"`: likewise from asset, simpler sentences (`orig` to `simp`), ten of each; train and validation are
            its valid part;
            `"asqa"`: likewise from asqa, ambiguous questions (`question` to `answer`), two long answers of each;
            `"documentation:reversed"`: sentences of Python's documentation, with their words in reverse order as the
            translation, whatever the languages; needs no data, for trying things out;
            a folder with two files for each split, whose line n is a pair, such as `train.de.gz` and `train.en.gz`
            (plain, .gz or .xz): names begin with train, with valid, validation, val or dev, and with test; or with a
            file of JSON lines for each split; the common begin of two files (`mine/train`), or one file of JSON lines;
            `"wmt14"`, `"wmt18"` and so on: the data set of the Hub, with one of the languages English;
            a folder written by `save_to_disk`; anything else that `datasets.load_dataset` takes.
            A missing validation or test split is the end of train, 5% of its rows each.
        source_lang: The language to translate from, such as `"de"`: the end of a file's name, a key of the column
            `translation`, or a column.
        target_lang: The language to translate to, likewise.
        config_name: Which configuration of a data set to load. None: for wmt14 and so on the one of both languages.
        source_column: The column of JSON lines or of a data set that holds the source. None: as `source_lang` says.
        target_column: Likewise the target.
        max_train_pairs: Keep only the first so many pairs of `train`.
        max_eval_pairs: Likewise of `validation`, and of `test`.
    Raises:
        ValueError: If the text is not found or cannot be read, two files differ in their numbers of lines, a language
            or column is not there, a split has no pairs, or a target of test is empty.
    """
    name = os.fspath(name_or_path)
    sides = source_column or source_lang, target_column or target_lang
    if sides[0] == sides[1] or (source_column is None) != (target_column is None):
        raise ValueError(
            f"source and target must be two languages, or two columns, got {source_lang=}, {target_lang=}, "
            f"{source_column=} and {target_column=}"
        )
    found = _known_pairs(name, sides) or _pairs_of_files(Path(name).expanduser(), sides)
    if found is not None and config_name is not None:
        raise ValueError(f"config_name chooses within a data set, and {name!r} is plain text; leave it out")
    if found is not None:
        parts = {split: data_set_of(pairs) for split, pairs in found.items()}
    else:
        loaded = _data_sets(name, config_name, (source_lang, target_lang))
        parts = {split: _pair_columns(rows, sides, f"{split} of {name!r}") for split, rows in loaded.items()}
    kept = split_rows({part: len(pairs) for part, pairs in parts.items()}, name)
    splits = {split: parts[part].select(numbers) for split, (part, numbers) in kept.items()}
    if REFERENCES in splits["train"].column_names:
        rows = cast(list[dict], splits["train"])
        splits["train"] = data_set_of([(row["source"], target) for row in rows for target in row[REFERENCES]])
    for split, most in (("train", max_train_pairs), ("validation", max_eval_pairs), ("test", max_eval_pairs)):
        splits[split] = splits[split].select(range(len(splits[split]))[:most])
        if not len(splits[split]):
            raise ValueError(f"every split needs pairs, and {split} of {name!r} has none; give a longer text")
    references = [[one] if isinstance(one, str) else one for one in pair_references(splits["test"])]
    empty = [number for number, texts in enumerate(references) if not all(text.strip() for text in texts)]
    if empty:
        raise ValueError(
            f"translations of test are compared with its targets, and {len(empty)} targets of test of {name!r} are "
            f"empty, the first in row {empty[0]}; remove these pairs from its files"
        )
    return DatasetDict([(split, splits[split]) for split in SPLITS])


def data_set_of(pairs: Pairs) -> Dataset:
    """Return pairs as `source` and `target`, and with the column `references` if a source has a list of targets."""
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    if all(isinstance(target, str) for target in targets):
        return Dataset.from_dict({"source": sources, "target": targets}, features=_PAIR)
    lists = [[target] if isinstance(target, str) else target for target in targets]
    columns = {"source": sources, "target": [first for first, *_ in lists], REFERENCES: lists}
    return Dataset.from_dict(columns, features=Features({**_PAIR, REFERENCES: List(Value("string"))}))


def pair_references(pairs: Dataset) -> list[str] | list[list[str]]:
    """Return what a text for each source is compared with: its target, or the list of all its targets.

    Args:
        pairs: A split of `load_pairs`.

    >>> pair_references(data_set_of([("It commenced.", ["It began.", "It started."])]))
    [['It began.', 'It started.']]
    """
    return pairs[REFERENCES if REFERENCES in pairs.column_names else "target"][:]


def check_pairs(pairs: Dataset) -> None:
    """Raise a ValueError if this is not one split with the columns `source` and `target`, and a row."""
    if not isinstance(pairs, Dataset) or not {"source", "target"} <= set(pairs.column_names):
        found = pairs.column_names if isinstance(pairs, Dataset) else type(pairs).__name__
        raise ValueError(f"pairs must be one split, a Dataset with the columns source and target, got {found}")
    if not len(pairs):
        raise ValueError("pairs must have a row, got none; give a longer text")


def _known_pairs(name: str, sides: tuple[str, str]) -> dict[str, Any] | None:
    """Return the pairs of each split of a known corpus, or None if `name` is no such corpus."""
    if name == "documentation:reversed":
        return _reversed_sentences()
    one_way = {"asset": ("orig", "simp"), "asqa": ("question", "answer")}.get(name)
    if one_way is None and (name not in KNOWN_FILES or name == "lm1b-sample"):
        return None
    if sides != one_way and (one_way or set(sides) != {"de", "en"}):
        raise ValueError(f"{name!r} is text in {' and '.join(one_way or ('de', 'en'))}, got {sides}; name these two")
    if name == "asset":
        return {"train": _asset("valid"), "test": _asset("test")}
    if name == "asqa":
        return {"train": _asqa()}
    return known_parts(name, [f".{side}" for side in sides], read_aligned)


def _reversed_sentences() -> dict[str, Pairs]:
    pairs: dict[str, Pairs] = {}
    for split, texts in load_corpus("documentation:topics").items():
        sentences = (words for text in texts["text"] for words in map(str.split, re.split(r"(?<=[.?!])\s", text)))
        short = (words for words in sentences if 1 < len(words) <= _MOST_WORDS)
        pairs[str(split)] = [(" ".join(words), " ".join(reversed(words))) for words in short]
    return pairs


def _asset(part: str) -> Pairs:
    names = [f"asset.{part}.{end}" for end in ("orig", *(f"simp.{number}" for number in range(10)))]
    files = [file_below("asset", name) for name in names]
    if None in files:
        raise ValueError(f"'asset' needs {names[files.index(None)]} (plain, .gz or .xz) in the folder asset")
    return [(source, list(targets)) for source, *targets in read_aligned(*files)]


def _asqa() -> Pairs:
    file = file_below("asqa", "asqa_dev.jsonl")
    if file is None:
        raise ValueError("'asqa' needs asqa_dev.jsonl (plain, .gz or .xz) in the folder asqa")
    rows = cast(list[dict], read_file(file))
    return [(row["question"], [one["long_answer"] for one in row["annotations"]]) for row in rows]


def _pairs_of_files(path: Path, sides: tuple[str, str]) -> dict[str, Any] | None:
    """Return the pairs of each split from files whose lines are pairs, or None if `path` names none."""
    if path.is_dir():
        begins = {split: rf"({words})(?![a-z]).*" for split, words in _WORDS_OF_SPLITS.items()}
        folder = path
    else:
        begins, folder = {"train": re.escape(path.name)}, path.parent
    names = sorted(child.name for child in folder.iterdir() if child.is_file()) if folder.is_dir() else []
    parts = {}
    for split, begin in begins.items():
        ends = [rf"{begin}\.{re.escape(side)}{_COMPRESSION}" for side in sides]
        files = [[name for name in names if re.match(end, name)] for end in ends]
        if not any(files):
            continue
        if [len(of_side) for of_side in files] != [1, 1]:
            raise ValueError(f"{split} of {path} needs one file for each of {sides}, got {files}; add or remove files")
        parts[split] = read_aligned(*(folder / of_side[0] for of_side in files))
    return parts or None


def read_aligned(*files: Path | None) -> list[tuple[str, ...]]:
    r"""Return the tuples of lines n of files, plain, .gz or .xz, without the white space around them.

    Only "\\n" ends a line, as other line ends occur within lines of web text.

    Raises:
        ValueError: If they have different numbers of lines, or one cannot be read.
    """
    texts = []
    for file in files:
        try:
            with fsspec.open(str(file), "rt", compression="infer", encoding="utf-8-sig", newline="\n") as lines:
                texts.append([line.strip() for line in cast(Any, lines)])
        except (UnicodeDecodeError, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise ValueError(f"{file} must be whole, and UTF-8 ({error}); copy or convert it again") from error
    if len({len(lines) for lines in texts}) > 1:
        raise ValueError(
            f"line n of each file must be of one pair, and {', '.join(map(str, files))} have "
            f"{' and '.join(str(len(lines)) for lines in texts)} lines; give the files of one corpus"
        )
    return list(zip(*texts, strict=True))


def _data_sets(name: str, config_name: str | None, languages: tuple[str, str]) -> dict[str, Dataset]:
    """Return the splits of a data set; of a folder of JSON lines each on its own, as only some may have references."""
    path = Path(name).expanduser()
    if path.is_dir() and any(re.search(rf"\.jsonl{_COMPRESSION}", child.name) for child in path.iterdir()):
        files = {
            split: [child for child in sorted(path.iterdir()) if re.match(rf"({words})(?![a-z]).*\.jsonl", child.name)]
            for split, words in _WORDS_OF_SPLITS.items()
        }
        if any(len(of_split) > 1 for of_split in files.values()):
            raise ValueError(f"{path} has several files for a split ({files}); move others into a folder of their own")
        return {split: load_parts(str(of_split[0]))["train"] for split, of_split in files.items() if of_split}
    if re.fullmatch(r"wmt\d\d", name):
        others = [language for language in languages if language != "en"]
        if config_name is None and len(others) != 1:
            raise ValueError(f"{name} has pairs with English, got {languages}; give 'en' as one, or config_name")
        name, config_name = f"wmt/{name}", config_name or f"{others[0]}-en"
    return load_parts(name, config_name)


def _pair_columns(rows: Dataset, sides: tuple[str, str], where: str) -> Dataset:
    """Return a data set with the columns `source` and `target`, without a copy of the texts; null is "".

    Where the target is a column of lists, or a column `references` stands beside `target`, as `load_pairs` returns
    them, all texts of a list are in the column `references`; these texts are copied.
    """
    if "translation" in rows.column_names and not set(sides) <= set(rows.column_names):
        rows, sides = rows.flatten(), (f"translation.{sides[0]}", f"translation.{sides[1]}")
    if not set(sides) <= set(rows.column_names):
        raise ValueError(
            f"{where} has no {' and '.join(sides)}, but {rows.column_names}; give two of these as source_lang and "
            "target_lang, or as source_column and target_column"
        )
    source, target = sides
    lists = REFERENCES if target == "target" and REFERENCES in rows.column_names else target
    if isinstance(rows.features[lists], List):
        rows = rows.with_format(None)
        targets = [several or [one] for several, one in zip(rows[lists][:], rows[target][:], strict=True)]
        if bad := [row for row, texts in enumerate(targets) if not all(isinstance(text, str) for text in texts)]:
            raise ValueError(f"{where}: {target} must have a text in each row, got {targets[bad[0]]} in row {bad[0]}")
        return data_set_of([(text or "", texts) for text, texts in zip(rows[source][:], targets, strict=True)])
    pairs = rows.select_columns([source, target]).rename_columns({source: "source", target: "target"})
    if bad := [name for name, kind in pairs.features.items() if kind not in (Value("string"), Value("large_string"))]:
        raise ValueError(f"{where}: {bad[0]} must be a column of texts, got {pairs.features[bad[0]]}; name another")
    if any(pairs.data.column(side).null_count for side in pairs.column_names):
        table = pairs.with_format("arrow")[:]
        pairs = Dataset(pa.table({side: pc.fill_null(table[side], "") for side in pairs.column_names}))
    return pairs if pairs.features == _PAIR else pairs.cast(_PAIR)
