"""Files of questions: each form is read the same, and what is wrong is named with its line."""

import gzip
import json
import re

import pytest

from hf_targets.evaluation.cited_questions import load_questions

ITEMS = [
    {"question": "Do cats sleep?", "docs": [{"title": "Cat", "text": "Cats sleep."}], "sample_id": 7},
    {"question": "Do dogs?", "docs": [{"title": "", "text": "é"}]},
]
LINES = "\n".join(map(json.dumps, ITEMS)) + "\n\n"


@pytest.mark.parametrize("content", [LINES, json.dumps(ITEMS), json.dumps(ITEMS, indent=1), "\ufeff" + LINES])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_lines_and_lists_are_read_alike_packed_or_not(content, pack, tmp_path):
    (tmp_path / "file").write_bytes(pack(content.encode()))
    assert load_questions(tmp_path / "file") == ITEMS


def line(**changes):
    return json.dumps(ITEMS[0] | changes)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "must have one or more, and .*file has none"),
        (LINES + "{", "file, line 4 is not JSON: Expecting"),
        (LINES + '{"a":' * 100_000, "file, line 4 is nested too deeply"),
        ("[" * 100_000, "file is nested too deeply"),
        ("[\n{},", "file is not JSON, line 2: "),
        (LINES.strip() + "\n3", "line 3: a question must be an object with question and docs, got int"),
        (line(question=" "), "line 1: question must be a text, got ' '; leave the item out"),
        (line(docs=[]), r"line 1: docs must list one document or more, got \[\]"),
        ("[" + line(docs=None) + "]", "question 1: docs must list one document or more, got None"),
        (line(docs=[{"title": "Cat", "text": " "}]), "line 1: document 1 must have a text, got ' '"),
        (line(docs=[*ITEMS[0]["docs"], {"text": "a"}]), "line 1: document 2 must have a title, got None"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(content, told, tmp_path):
    (tmp_path / "file").write_text(content)
    with pytest.raises(ValueError, match=told):
        load_questions(tmp_path / "file")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (gzip.compress(LINES.encode())[:-9], "is no whole gzip file"),
        (b"caf\xe9", "must be UTF-8, and .* is not"),
        (None, "cannot read .*: No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(content, told, tmp_path):
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=re.compile(f"{told}.*")):
        load_questions(tmp_path / "file")
