"""Pairs of texts, a source and its target, with the splits train, validation and test."""

import os
import re
from pathlib import Path

from datasets import Dataset, DatasetDict

from hf_targets.data.hub_data import load_parts, without_progress_bars
from hf_targets.data.known_pairs import known_pairs
from hf_targets.data.pair_columns import PairColumns
from hf_targets.data.pair_files import file_pairs
from hf_targets.data.references import data_set_of, pair_references, pairs_to_train_on
from hf_targets.data.splits import SPLITS, split_rows


@without_progress_bars()
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
            `"multi30k"`: raw captions from the folder multi30k-en-de below the one that `HF_TARGETS_DATA` names; test
            is test_2016_flickr;
            `"iwslt14"`: likewise from iwslt14-de-en, lower-cased and tokenized; train is train_sample, a part of the
            whole set, where there is no train;
            `"tatoeba"`: likewise from tatoeba-de-en; split by the English side, so that no sentence is in two splits;
            `"opus-multidomain:law"`, `:medical`, `:it`, `:koran`: likewise from opus-multidomain-de-en; where a domain
            has no file to train on, train is its dev file, and validation and test are the halves of its test file;
            `"asset"`: likewise from asset, simpler sentences (`orig` to `simp`), ten of each; train and validation are
            its valid part;
            `"documentation:reversed"`: sentences of Python's documentation, with their words in reverse order as the
            translation, whatever the languages; needs no data, for trying things out;
            a folder with two files for each split, such as `train.de.gz` and `train.en.gz` (plain, .gz or .xz), whose
            names begin with train, with valid, validation, val or dev, and with test; or with files of JSON lines;
            the common begin of two such files (`mine/train`), or one file of JSON lines (`mine.jsonl.gz`);
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
            or column is not there, a split has no pairs, a target of test is empty, or an option does not apply.
    """
    name_or_path = os.fspath(name_or_path)
    most = {"train": max_train_pairs, "validation": max_eval_pairs, "test": max_eval_pairs}
    for name, count in (("max_train_pairs", max_train_pairs), ("max_eval_pairs", max_eval_pairs)):
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}; use None for all pairs")
    columns = PairColumns(source_lang, target_lang, source_column, target_column)
    found = known_pairs(name_or_path, columns) or file_pairs(Path(name_or_path).expanduser(), columns)
    if found is None:
        parts = _data_set_pairs(name_or_path, config_name, columns)
    elif config_name is not None:
        raise ValueError(
            f"config_name chooses within a data set, and {name_or_path!r} is read from files; "
            f"leave it out, got config_name={config_name!r}"
        )
    else:
        parts = {split: data_set_of(pairs) for split, pairs in found.items()}
    rows = split_rows({part: len(pairs) for part, pairs in parts.items()}, name_or_path)
    splits = {split: parts[part].select(numbers) for split, (part, numbers) in rows.items()}
    splits["train"] = pairs_to_train_on(splits["train"])
    splits = {split: pairs.select(range(len(pairs))[: most[split]]) for split, pairs in splits.items()}
    _check_splits(splits, name_or_path)
    return DatasetDict([(split, splits[split]) for split in SPLITS])


def _data_set_pairs(name: str, config_name: str | None, columns: PairColumns) -> dict[str, Dataset]:
    if re.fullmatch(r"wmt\d\d", name):
        languages = {columns.source_lang, columns.target_lang}
        if config_name is None and "en" not in languages:
            raise ValueError(
                f"{name} has pairs with English, got {columns.source_lang!r} and {columns.target_lang!r}; give 'en' as "
                f"one of them, or config_name"
            )
        name, config_name = f"wmt/{name}", config_name or "-".join([*sorted(languages - {"en"}), "en"])
    parts = load_parts(name, config_name)
    return {split: columns.of_data_set(part, f"{split} of {name!r}") for split, part in parts.items()}


def _check_splits(splits: dict[str, Dataset], name: str) -> None:
    for split, pairs in splits.items():
        if not len(pairs):
            raise ValueError(f"every split needs pairs, and {split} of {name!r} has none; give a longer text")
    references = [[of_one] if isinstance(of_one, str) else of_one for of_one in pair_references(splits["test"])]
    empty = [number for number, texts in enumerate(references) if not all(text.strip() for text in texts)]
    if empty:
        raise ValueError(
            f"every translation of test is compared with its target, and {len(empty)} targets of test of {name!r} are "
            f"empty, the first in row {empty[0]}; remove these pairs from its files"
        )
