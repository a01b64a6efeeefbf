import pytest
from PIL import Image

from hf_targets.curves.reconstruction import reconstruction_error
from hf_targets.curves.reconstruction_figure import plot_reconstruction_error


@pytest.mark.parametrize("degree_ratios", [[0.0], [0.0, 0.33, 0.66]])
def test_errors_become_a_png_with_a_panel_a_degree_ratio(degree_ratios, tmp_path):
    rows = reconstruction_error([5, 10, 15], [1.0, 2.0], degree_ratios, num_sequences=2)
    plot_reconstruction_error(rows, tmp_path / "errors.png")
    image = Image.open(tmp_path / "errors.png").convert("RGB")
    assert image.size == (150 + 525 * len(degree_ratios), 600)
    assert len(image.getcolors(10**6)) > 50


def test_there_must_be_something_to_draw(tmp_path):
    with pytest.raises(ValueError, match="got none"):
        plot_reconstruction_error([], tmp_path / "errors.png")
