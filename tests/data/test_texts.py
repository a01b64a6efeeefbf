"""What is no list of texts is refused wherever one is taken, and told in words."""

import pytest

from hf_targets.data.words import check_letters, check_texts


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ("one", "names must be a list of texts, got the text 'one'; put it in a list"),
        ((text for text in ["one"]), "names must be a list of texts, got a generator; make it a list"),
        (["one", 2], "names must be texts, and number 1 is 2; leave it out"),
        (["one", "t\ud83do"], "number 1 of the names must have whole letters, got half of one .* at character 1"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(texts, says):
    with pytest.raises(ValueError, match=says):
        check_texts(texts, "names")


def test_texts_of_any_letters_are_taken():
    check_texts(["", "\U0001f600", "हि"], "names")
    check_letters("\ufeff\u200b", "a name")
