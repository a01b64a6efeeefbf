"""Known corpora of pairs: those in the folder that HF_TARGETS_DATA names, and one that needs no data."""

import hashlib
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from hf_targets.data.corpora import load_corpus
from hf_targets.data.pair_columns import PairColumns
from hf_targets.data.pair_files import read_pair_of_files
from hf_targets.data.references import Pairs
from hf_targets.data.splits import SPLITS, of_dev_and_test
from hf_targets.data.text_files import COMPRESSIONS, DATA_VARIABLE, files_below, read_lines

logger = logging.getLogger(__name__)

DOMAINS = "opus-multidomain:"
KNOWN_PAIRS = (
    "multi30k",
    "iwslt14",
    "tatoeba",
    f"{DOMAINS}law",
    f"{DOMAINS}medical",
    f"{DOMAINS}it",
    f"{DOMAINS}koran",
)
_LANGUAGES = {"de", "en"}
REVERSED = "documentation:reversed"
ASSET = "asset"
_SIMPLIFICATIONS = 10
"""Of each sentence of that corpus."""
_MOST_WORDS = 20
"""Of a sentence of that corpus."""


def known_pairs(name: str, columns: PairColumns) -> Mapping[str, Pairs] | None:
    """Return the pairs of each split of a known corpus, or None if `name` is no such corpus.

    Raises:
        ValueError: If its files are missing or damaged, it has not both languages, or columns are named.
    """
    if name == REVERSED:
        return _reversed_sentences()
    if name == ASSET:
        if columns.named or columns.sides != ("orig", "simp"):
            raise ValueError(
                f"{name!r} leads from sentences to simpler ones, got {columns.sides[0]!r} and {columns.sides[1]!r}; "
                "give source_lang='orig' and target_lang='simp', and no columns"
            )
        return {"train": _asset("valid"), "test": _asset("test")}
    domain = name.removeprefix(DOMAINS) if name.startswith(DOMAINS) else None
    if domain is None and name not in KNOWN_PAIRS:
        return None
    if columns.named or set(columns.sides) != _LANGUAGES:
        raise ValueError(
            f"{name!r} is plain text in de and en, got {columns.sides[0]!r} and {columns.sides[1]!r}; give source_lang "
            f"and target_lang among these two, and no columns"
        )
    if name == "tatoeba":
        return _tatoeba(columns)
    if name == "multi30k":
        return _splits_of("multi30k-en-de", ("train", "val", "test_2016_flickr"), columns, name)
    if name == "iwslt14":
        return _iwslt14(columns)
    folder = f"{DOMAINS[:-1]}-de-en"
    dev, test = (_of_begin(folder, f"{domain}.{part}", columns, name) for part in ("dev", "test"))
    if not _is_there(folder, f"{domain}.train.en"):
        return of_dev_and_test([*dev], [*test])
    return {"train": _of_begin(folder, f"{domain}.train", columns, name), "validation": dev, "test": test}


def _reversed_sentences() -> Mapping[str, Pairs]:
    """Return sentences of the documentation, with their words in reverse order as the translation."""
    pairs: dict[str, Pairs] = {}
    for split, texts in load_corpus("documentation:topics").items():
        sentences = (words for text in texts["text"] for words in map(str.split, re.split(r"(?<=[.?!])\s", text)))
        short = (words for words in sentences if 1 < len(words) <= _MOST_WORDS)
        pairs[str(split)] = [(" ".join(words), " ".join(reversed(words))) for words in short]
    return pairs


def _asset(part: str) -> Pairs:
    ends = ["orig", *(f"simp.{number}" for number in range(_SIMPLIFICATIONS))]
    source, *targets = files_below(ASSET, [f"{ASSET}.{part}.{end}" for end in ends], ASSET)
    pairs = [read_pair_of_files(source, target) for target in targets]
    return [(of_one[0][0], [target for _, target in of_one]) for of_one in zip(*pairs, strict=True)]


def _iwslt14(columns: PairColumns) -> Mapping[str, Pairs]:
    folder = "iwslt14-de-en"
    whole = _is_there(folder, "train.en") or not _is_there(folder, "train_sample.en")
    pairs = _splits_of(folder, ("train" if whole else "train_sample", "valid", "test"), columns, "iwslt14")
    if not whole:
        logger.warning(
            f"train of iwslt14 is a sample of {len(pairs['train']):,} of its 160,000 pairs, so scores are far below "
            f"the published ones; put train.de and train.en into {folder} for the whole set"
        )
    return pairs


def _tatoeba(columns: PairColumns) -> Mapping[str, Pairs]:
    """Split by a hash of the English side, 2% each for validation and test, without a sentence of two splits.

    One sentence has several translations. Pairs are left out of train, and then of validation, if a later split has
    one of their two sentences.
    """
    (file,) = files_below("tatoeba-de-en", ["deu.txt"], "tatoeba")
    pairs: dict[str, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    for number, line in enumerate(read_lines(file, newline="\n"), start=1):
        english, *rest = (text.strip() for text in line.split("\t"))
        if not rest:
            raise ValueError(f"each line must be English, a tab and German, got line {number} of {file}: {line!r:.60}")
        fiftieth = int.from_bytes(hashlib.sha256(english.encode()).digest()) % 50
        split = {48: "validation", 49: "test"}.get(fiftieth, "train")
        pairs[split].append((english, rest[0]) if columns.source_lang == "en" else (rest[0], english))
    for split, later in (("validation", ("test",)), ("train", ("validation", "test"))):
        held_out = {text for other in later for pair in pairs[other] for text in pair}
        pairs[split] = [pair for pair in pairs[split] if held_out.isdisjoint(pair)]
    return pairs


def _splits_of(folder: str, begins: tuple[str, str, str], columns: PairColumns, corpus: str) -> Mapping[str, Pairs]:
    return {split: _of_begin(folder, begin, columns, corpus) for split, begin in zip(SPLITS, begins, strict=True)}


def _of_begin(folder: str, begin: str, columns: PairColumns, corpus: str) -> Pairs:
    return read_pair_of_files(*files_below(folder, [f"{begin}.{side}" for side in columns.sides], corpus))


def _is_there(folder: str, name: str) -> bool:
    data = os.environ.get(DATA_VARIABLE)
    return bool(data) and any(Path(data, folder, f"{name}{suffix}").is_file() for suffix in COMPRESSIONS)
