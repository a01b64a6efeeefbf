import warnings

from PIL import Image

from hf_targets.figures.learning_curves import plot_learning_curves

HISTORY = [
    {"step": 5, "loss_next_token": 3.0, "loss": 2.0},
    {"step": 10, "eval_perplexity": 20.0, "eval_perplexity_ensemble": 18.0},
    {"step": 20, "eval_perplexity": 15.0, "eval_perplexity_ensemble": 13.0},
]


def test_curves_of_models_with_and_without_heads_become_a_png(tmp_path):
    plain = [{"step": 5, "loss": 3.0}, {"step": 10, "eval_perplexity": 21.0}]
    plot_learning_curves({"plain": [plain], "wdr": [HISTORY, HISTORY[:2]]}, tmp_path / "curves.png")
    image = Image.open(tmp_path / "curves.png").convert("RGB")
    assert image.size == (1500, 600)
    assert len(image.getcolors(10**6)) > 50


def test_a_log_without_figures_draws_empty_axes_in_silence(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot_learning_curves({"plain": [[]]}, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").exists()
