import re

import pytest

from lab.passages import passages_of, read_texts
from tests.recipes.answering import QUESTION, TEXT, write_models
from tests.recipes.running import run_recipe


def test_the_demo_answers_in_three_ways_and_leads_from_each_phrase_to_its_document(tmp_path):
    pytest.importorskip("sentence_transformers")
    write_models(tmp_path)
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf" / "pets.txt").write_text(f"{TEXT}\n\n| 1 | 2 | 3 | 4 | 5 | 6 | 7 |\n")
    given = ["--documents", tmp_path / "shelf", "--output_dir", tmp_path / "out", "--questions", QUESTION]
    given += ["--model", tmp_path / "writer", "--encoder", tmp_path / "encoder"]
    printed = run_recipe("answer_questions", *given)
    passes = dict(re.findall(r"^(plainly|with drafts|with phrases) +(\d+) +[\d.]+", printed, re.M))
    assert int(passes["with drafts"]) < int(passes["plainly"]) and "the same" in printed
    page = (tmp_path / "out" / "answers.html").read_text()
    links = set(re.findall(r'href="#([^"]*-from-[^"]*)"', page))
    assert links and links <= set(re.findall(r'<mark id="([^"]*)"', page)) and "| 1 |" not in page
    (tmp_path / "shelf" / "pets.txt").write_text("The dog sat on the flat mat of a cat.")
    run_recipe("answer_questions", *given)  # the collection of the first run follows its documents
    assert "The dog sat" in (tmp_path / "out" / "answers.html").read_text()


def test_a_paragraph_without_an_end_becomes_passages_that_a_model_can_read(tmp_path):
    (tmp_path / "one.txt").write_text(f"{TEXT} " * 300)
    passages = passages_of(read_texts(str(tmp_path)), 50)
    assert len(passages) > 4 and max(map(len, passages.values())) <= 2000
    assert " ".join(passages.values()) == " ".join([TEXT] * 300)


def test_the_benchmark_of_lookup_prints_every_way_for_both_kinds_of_questions(tmp_path):
    write_models(tmp_path)
    (tmp_path / "pets.txt").write_text(f"{TEXT}\n")
    printed = run_recipe("benchmarks/lookup", "--model", tmp_path / "writer", "--documents", tmp_path)
    ways = re.findall(r"^\| (text[^|]*) \|.* 100% \|$", printed, re.M)
    assert ways == ["text", "text and documents", "text, auto"] * 4
    assert "questions about documents, 2 at once" in printed


def test_the_profile_of_drafts_prints_every_loop(tmp_path):
    write_models(tmp_path)
    printed = run_recipe("benchmarks/draft_profile", "--model", tmp_path / "writer")
    rows = re.findall(r"^\| (\d) \| ([^|]+) \| [\d.]+ \| [\d.]+ \| [\d.]+ \| ([\d.]+) \|$", printed, re.M)
    assert [row[:2] for row in rows] == [
        (n, way) for n in "12" for way in ("Transformers", "ours, no drafts", "ours, drafts")
    ]
    assert all((way == "ours, drafts") == (float(tokens) > 1) for _, way, tokens in rows)
