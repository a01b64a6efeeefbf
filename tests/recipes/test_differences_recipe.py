"""The recipe that draws word differences: its figure, its points, and what it refuses before it writes anything."""

import json

import pytest

from tests.recipes.running import run_recipe, small_text

TEXT = ("--dataset", small_text(), "--num_sentences", 5, "--perplexity", 5)


def test_differences_are_drawn_with_their_points(tmp_path):
    printed = run_recipe("draw_differences", *TEXT, "--output_dir", tmp_path)
    levels = json.loads((tmp_path / "differences.json").read_text())["levels"]
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
        (["--seed", "-1"], r"seeds must be in \[0, 2\^32 - 1\]"),
        (["--perplexity", "99999"], "perplexity must be above 0 and below the"),
    ],
)
def test_what_cannot_be_drawn_is_told_and_nothing_is_written(options, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        run_recipe("draw_differences", *TEXT, *options, "--output_dir", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_in_place_of_the_folder_is_told_before_the_model_is_loaded(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(ValueError, match=r"output_dir must be a folder, and .*out is a file; name another"):
        run_recipe("draw_differences", "--model_name_or_path", "nowhere", "--output_dir", tmp_path / "out")


def test_targets_that_are_too_few_leave_no_figure(tmp_path):
    (tmp_path / "train.txt").write_text("a b c\n" * 9)
    for part in ("validation", "test"):
        (tmp_path / f"{part}.txt").write_text("a b c\n")
    options = ["--dataset", tmp_path, "--num_sentences", 1, "--word", "b", "--perplexity", 0.5]
    with pytest.raises(ValueError, match="at least 2"):
        run_recipe("draw_differences", *options, "--output_dir", tmp_path / "out")
    assert not (tmp_path / "out").exists()
