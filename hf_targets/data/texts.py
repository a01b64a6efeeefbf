"""What several texts must be: a list, each a text of whole letters."""

from collections.abc import Sequence
from typing import Any


def check_texts(texts: Any, what: str) -> None:
    """Check that several texts were given.

    Args:
        what: What they are, in the plural, for the error.
    Raises:
        ValueError: If they are one text or no list, or one is no text or has half a letter.
    """
    if isinstance(texts, str):
        raise ValueError(f"{what} must be a list of texts, got the text {texts[:40]!r}; put it in a list")
    if not isinstance(texts, Sequence):
        raise ValueError(f"{what} must be a list of texts, got a {type(texts).__name__}; make it a list")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{what} must be texts, and number {index} is {text!r:.60}; leave it out")
        check_letters(text, f"number {index} of the {what}")


def check_letters(text: str, what: str) -> None:
    """Check that a text has whole letters, which tokenizers need.

    Args:
        what: What the text is, for the error.
    Raises:
        ValueError: If it has a lone surrogate, as JSON such as "\\ud83d" gives.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place = text[max(error.start - 10, 0) : error.start + 10]
        raise ValueError(
            f"{what} must have whole letters, got half of one (a surrogate) at character {error.start}: {place!r}; "
            "mend the text where it was cut or decoded"
        ) from error
