import pytest
from PIL import Image

from hf_targets.figures.learning_curves import plot_learning_curves, plot_logged

HISTORY = [
    {"step": 5, "loss_next_token": 3.0, "loss": 2.0},
    {"step": 10, "eval_perplexity": 20.0, "eval_perplexity_ensemble": 18.0},
    {"step": 20, "eval_perplexity": 15.0, "eval_perplexity_ensemble": 13.0},
]


def log(*perplexities):
    return [{"step": step, "eval_perplexity": value} for step, value in enumerate(perplexities, start=1)]


def test_curves_of_models_with_and_without_heads_become_a_png(tmp_path):
    plain = [{"step": 5, "loss": 3.0}, {"step": 10, "eval_perplexity": 21.0}]
    plot_learning_curves({"plain": [plain], "wdr": [HISTORY, HISTORY[:2]]}, tmp_path / "curves.png")
    image = Image.open(tmp_path / "curves.png").convert("RGB")
    assert image.size == (1650, 675)
    assert len(image.getcolors(10**6)) > 50


def test_the_marked_line_is_the_mean_of_the_seeds_at_the_steps_they_share():
    axes = plot_learning_curves({"plain": [log(9.0, 5.0, 4.0), log(7.0, 3.0)]}).axes[0]
    marked = [line for line in axes.lines if line.get_marker() == "o"]
    assert [list(line.get_xydata().ravel()) for line in marked] == [[1, 8, 2, 4]]
    thin = [list(line.get_ydata()) for line in axes.lines if line not in marked]
    assert thin == [[9, 5, 4], [7, 3]]


def test_what_is_measured_after_a_training_is_no_point_of_its_last_step():
    axes = plot_learning_curves({"plain": [[*log(9.0, 5.0, 8.0), {"step": 3, "eval_perplexity": 5.0}]]}).axes[0]
    assert list(axes.lines[0].get_ydata()) == [9, 5, 8]


@pytest.mark.parametrize(("part", "told"), [("loss_next_token", "the next token"), ("loss_masked_token", "masked")])
def test_losses_are_compared_by_the_part_that_models_share(part, told):
    plain, heads = [{"step": 5, "loss": 3.0}], [{"step": 5, part: 2.9, "loss": 1.5}]
    axes = plot_learning_curves({"plain": [plain], "wdr": [heads]}).axes[1]
    assert sorted(value for line in axes.lines for value in line.get_ydata()) == [2.9, 3.0]
    assert told in axes.get_ylabel()


def test_one_number_is_drawn_of_the_models_whose_log_has_it(tmp_path):
    logged = [{"step": step, "gradient_diversity": value} for step, value in ((1, 2.0), (2, 3.0))]
    rows = {"plain": [log(3.0)], "wdr": [logged]}
    (axes,) = plot_logged(rows, "gradient_diversity", "diversity", tmp_path / "one.png").axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[2.0, 3.0]] and (tmp_path / "one.png").exists()
