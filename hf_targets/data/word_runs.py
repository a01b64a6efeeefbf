"""The words of a text of any script, as runs of letters: to compare texts by the words that they share."""

from unicodedata import normalize

import regex


def word_runs(text: str) -> list[str]:
    """Return the words of a text in order, in lower case and composed form (NFC).

    A word is a run of letters and digits, with the marks that belong to letters: vowel signs, accents, joiners. Text of
    a script that writes no space between words is one word up to the next stop.

    >>> word_runs("The cat's हिन्दी, 2nd")
    ['the', 'cat', 's', 'हिन्दी', '2nd']
    """
    return regex.findall(r"\w+", normalize("NFC", text.lower()))  # the \w of re has no marks
