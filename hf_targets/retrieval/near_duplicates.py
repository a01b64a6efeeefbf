"""Documents without those that nearly repeat an earlier one."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import xxhash

from hf_targets.data.progress import progress
from hf_targets.data.words import word_runs
from hf_targets.extras import require
from hf_targets.retrieval.text_checks import checked_texts

_NUM_HASHES = 128
_MISSED = 1e-6  # the most that the probability to miss a pair may be
_LOWEST = 0.15  # where 128 bands of one hash miss a pair with a probability of 1e-9


class DistinctDocuments(NamedTuple):
    """What `without_near_duplicates` returns.

    Attributes:
        kept: Texts by id.
        duplicates: The ids of the documents that were left out, and of which kept document each is a duplicate.
    """

    kept: dict[str, str]
    duplicates: dict[str, str]


def without_near_duplicates(
    documents: Mapping[str, str], similarity: float = 0.8, *, shingle_size: int = 5
) -> DistinctDocuments:
    """Leave out each document that is similar to an earlier one that is kept.

    The similarity of two documents is |A & B| / |A | B|, where A and B are their sets of shingles, the runs of
    `shingle_size` words. Candidates are found by MinHash, in a time linear in the documents, and then compared exactly:
    no document is left out that is less similar. A pair that is as similar is missed once in a million times, if the
    hashes are as good as random.

    >>> documents = {"a": "The cat sat on the mat.", "b": "the cat sat on the mat", "c": "The dog ran."}
    >>> without_near_duplicates(documents).duplicates
    {'b': 'a'}

    Args:
        documents: Texts by id.
        similarity: From which on a document is left out, in [0.15, 1].
        shingle_size: Words of a shingle, as `word_runs` finds them. A document of fewer words is one shingle, as a text
            without white space between words is. A document without a word is compared as a whole.
    Raises:
        ValueError: If there is no document, one has no text, `similarity` is out of range, or `shingle_size` below 1.
    Source: Lee et al., "Deduplicating Training Data Makes Language Models Better", section 4.2.
        Departs: candidates are compared by their shingles, not by their edit distance.
    """
    if not _LOWEST <= similarity <= 1:
        raise ValueError(f"similarity must be in [{_LOWEST}, 1], got {similarity}")
    if shingle_size < 1:
        raise ValueError(f"shingle_size must be at least 1, got {shingle_size}")
    datasketch = require("datasketch", extra="phrases")
    index = datasketch.MinHashLSH(num_perm=_NUM_HASHES, params=_bands(similarity))
    empty = datasketch.MinHash(_NUM_HASHES, hashfunc=int, scheme="affine64")
    kept, duplicates, order = {}, {}, {}
    with progress(len(documents), "looking for near duplicates", unit="document") as bar:
        for name, text in zip(documents, checked_texts(documents), strict=True):
            shingles = _shingles(text, shingle_size)
            signature = _signature(empty, shingles)
            for candidate in sorted(index.query(signature), key=order.__getitem__):
                if _jaccard(shingles, _shingles(kept[candidate], shingle_size)) >= similarity:
                    duplicates[name] = candidate
                    break
            else:
                index.insert(name, signature)
                order[name] = len(kept)
                kept[name] = text
            bar.update()
    return DistinctDocuments(kept, duplicates)


def _bands(similarity: float) -> tuple[int, int]:
    """Return a number of bands b and of hashes r in each, b * r <= 128, the largest r that misses few pairs.

    A pair of similarity s is missed with probability (1 - s^r)^b. What is found beyond costs only time.
    """
    sizes: Iterator[tuple[int, int]] = ((_NUM_HASHES // rows, rows) for rows in range(_NUM_HASHES // 2, 0, -1))
    return next((b, r) for b, r in sizes if (1 - similarity**r) ** b <= _MISSED)


def _shingles(text: str, size: int) -> np.ndarray:
    """Return the distinct hashes of a text's shingles, uint64, in ascending order."""
    words = word_runs(text) or [text]
    runs = (" ".join(words[first : first + size]) for first in range(max(1, len(words) - size + 1)))
    hashes = [xxhash.xxh3_64_intdigest(run.encode("utf-8", "surrogatepass")) for run in runs]
    return np.unique(np.array(hashes, np.uint64))


def _signature(empty: Any, shingles: np.ndarray) -> Any:
    signature = empty.copy()
    signature.update_batch(shingles.tolist())
    return signature


def _jaccard(first: np.ndarray, second: np.ndarray) -> float:
    common = len(np.intersect1d(first, second, assume_unique=True))
    return common / (len(first) + len(second) - common)
