"""The text8 corpus: one line of the words of Wikipedia in lower case, split by its characters."""

from hf_targets.data.splits import SPLITS
from hf_targets.data.text_files import files_below, read_lines

_ENDS = (0.9, 0.95, 1.0)
_ROW = 100_000
"""Characters in a row, and up to the end of its last word."""


def text8_rows() -> dict[str, list[str]]:
    """Return rows of words for each split, each row with a space at its end, as the corpus has no lines.

    The first 90% of the characters are train, the next 5% validation and the rest test; a word that lies across a
    border belongs to the part before it. For the whole file of 100,000,000 characters these are the splits of Mikolov.

    Raises:
        ValueError: If there is no file `text8` (plain, .gz or .xz) in a folder text8 below the one that
            `HF_TARGETS_DATA` names.
    Source: Mahoney, "About the test data"; Mikolov et al. 2014.
    """
    [file] = files_below("text8", ("text8",), "text8")
    text = " ".join("".join(read_lines(file)).split())
    rows, begin = {}, 0
    for split, share in zip(SPLITS, _ENDS, strict=True):
        end = _word_end(text, round(share * len(text)))
        rows[split] = _rows(text[begin:end].strip())
        begin = max(begin, end)
    return rows


def _word_end(text: str, position: int) -> int:
    """Return where the word that lies across a position ends; the position itself if none does."""
    end = text.find(" ", position)
    return len(text) if end < 0 else end


def _rows(text: str) -> list[str]:
    rows, begin = [], 0
    while begin < len(text):
        end = _word_end(text, begin + _ROW)
        rows.append(text[begin:end].strip() + " ")
        begin = end + 1
    return rows
