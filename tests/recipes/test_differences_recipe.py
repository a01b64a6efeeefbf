"""The recipe that draws word differences: its figure, its points, and what it refuses before it writes anything."""

import json

import pytest

from tests.recipes.running import run_recipe, small_text

TEXT = ("--dataset", small_text(), "--num_sentences", 5, "--perplexity", 5)


def test_differences_are_drawn_with_their_points(tmp_path):
    printed = run_recipe("draw_differences", *TEXT, "--output_dir", tmp_path)
    levels = json.loads((tmp_path / "differences.json").read_text())
    assert [one["level"] for one in levels] == [0, 1, 2]
    assert all(len(one["points"]) == len(one["words"]) for one in levels)
    assert (tmp_path / "differences.png").read_bytes().startswith(b"\x89PNG")
    assert "| level | targets | mean cosine | variance within words |" in printed


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--word", "zebra"], "'zebra' does not; give another"),
        (["--num_sentences", "0"], "num_sentences must be 1 or more, got 0"),
        (["--num_sentences", "99999"], "num_sentences must be at most the"),
        (["--perplexity", "99999"], "perplexity must be above 0 and below the"),
    ],
)
def test_what_cannot_be_drawn_is_told_and_nothing_is_written(options, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        run_recipe("draw_differences", *TEXT, *options, "--output_dir", tmp_path / "out")
    assert not (tmp_path / "out").exists()
