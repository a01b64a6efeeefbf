import matplotlib.figure
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from PIL import Image

from hf_targets.masked_diffusion.curve_figure import plot_curve_steps
from hf_targets.masked_diffusion.curve_steps import CurveStep, curves_of_canvases, principal_plane
from tests.masked_diffusion.models import MASK, clean_ids, make_mdlm

BLUE, ORANGE, RED = "#1f77b4", "#ff7f0e", "#d62728"
LENGTH = 6


class Words:
    """A tokenizer whose tokens are hard to draw."""

    def decode(self, ids: list[int]) -> str:
        return {1: r" $\nothing$", 2: "\n", 3: "  "}.get(ids[0], f" token{ids[0]}")


def make_steps(num_steps: int = LENGTH + 1) -> list[CurveStep]:
    """Return the steps of a canvas that is filled from the left."""
    text = clean_ids(1, LENGTH)
    text[0, :3] = torch.tensor([1, 2, 3])
    canvases = torch.full((num_steps, 1, LENGTH), MASK)
    for index, canvas in enumerate(canvases):
        canvas[:, :index] = text[:, :index]
    return curves_of_canvases(make_mdlm("curve"), canvases, num_points=50)


@pytest.fixture
def draw(monkeypatch, tmp_path):
    """Return a function that draws steps, and gives the figure back with the file that it went to."""
    saved, save = [], matplotlib.figure.Figure.savefig
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", lambda self, *a, **k: (saved.append(self), save(self, *a)))

    def run(steps, **options):
        plot_curve_steps(steps, tmp_path / "steps.png", **options)
        return saved[-1], tmp_path / "steps.png"

    return run


def lines_of(axes, color: str, marker: str) -> list[np.ndarray]:
    lines = [line for line in axes.lines if to_hex(line.get_color()) == color and line.get_marker() == marker]
    return [np.array(line.get_data()).T for line in lines]


def drawn_panels(figure) -> list:
    return [axes for axes in figure.axes if axes.lines]


@pytest.mark.parametrize(("num_panels", "shown"), [(1, [1]), (2, [1, 7]), (4, [1, 3, 5, 7]), (99, [*range(1, 8)])])
def test_panels_go_from_the_first_canvas_to_the_last(draw, num_panels, shown):
    figure, path = draw(make_steps(), num_panels=num_panels)
    titles = [axes.get_title() for axes in drawn_panels(figure)]
    assert titles == [f"canvas {position} of 7: {7 - position} of 6 tokens masked" for position in shown]
    assert Image.open(path).size[0] == 780 * min(len(shown), 2 if len(shown) == 4 else 3)


def test_a_panel_shows_the_projected_curve_its_control_points_and_its_words(draw):
    steps = make_steps()
    plane = principal_plane(steps)
    figure, _ = draw(steps, num_panels=3)
    for axes, step in zip(drawn_panels(figure), (steps[0], steps[3], steps[6]), strict=True):
        for points, color, marker in ((step.curve, ORANGE, "None"), (step.control_points, BLUE, "o")):
            (line,) = lines_of(axes, color, marker)
            assert np.allclose(line, plane.project(points))
        (begin,) = lines_of(axes, ORANGE, "o")
        assert np.allclose(begin, plane.project(step.control_points[:1]))
        given, masked = lines_of(axes, RED, "x")
        assert np.allclose(given, plane.project(step.tokens[~step.masked]))
        assert np.allclose(masked, plane.project(step.tokens[step.masked]))


def test_axes_are_the_same_in_all_panels_hold_all_points_and_tell_their_variance(draw):
    steps = make_steps()
    figure, _ = draw(steps)
    limits = {(axes.get_xlim(), axes.get_ylim()) for axes in drawn_panels(figure)}
    assert len(limits) == 1
    ((left, right), (low, high)), plane = limits.pop(), principal_plane(steps)
    points = torch.cat([plane.project(steps[position].control_points) for position in (0, 2, 4, 6)])
    assert left < points[:, 0].min() and points[:, 0].max() < right
    assert low < points[:, 1].min() and points[:, 1].max() < high
    assert all(axes.get_aspect() == 1 for axes in drawn_panels(figure))
    for label, share in zip((figure.get_supxlabel(), figure.get_supylabel()), plane.shares, strict=True):
        assert label.endswith(f"principal component, {share:.1%} of the variance")


def test_words_are_written_beside_their_points_unless_they_are_masked(draw):
    steps = make_steps()
    figure, _ = draw(steps, tokenizer=Words())
    plane = principal_plane(steps)
    first, *_, last = drawn_panels(figure)
    assert not first.texts
    shown = [Words().decode([id_]).strip() for id_ in steps[-1].canvas.tolist()]
    assert [text.get_text() for text in last.texts] == [r"$\nothing$", "↵", "␣␣", *shown[3:]]
    for text, point in zip(last.texts, plane.project(steps[-1].tokens).tolist(), strict=True):
        assert text.xy == pytest.approx(point)
        assert 0 < np.hypot(*text.xyann) < 80  # of 72 an inch


def test_words_at_one_point_in_a_corner_are_written_inside_the_panel_and_off_one_another(draw):
    corners = torch.tensor([[0.0, 0.0], [10.0, 6.0], [0.0, 6.0]], dtype=torch.float64)
    tokens, ids = corners[1].repeat(LENGTH, 1), torch.arange(1, LENGTH + 1)
    step = CurveStep(ids, torch.zeros(LENGTH, dtype=torch.bool), corners, torch.stack([corners[0], corners[1]]), tokens)
    figure, _ = draw([step], tokenizer=Words())
    (axes,) = drawn_panels(figure)
    boxes = [matplotlib.text.Text.get_window_extent(text) for text in axes.texts]
    assert len(boxes) == LENGTH
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:index])
        assert axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1
        assert axes.bbox.y0 <= box.y0 and box.y1 <= axes.bbox.y1


def test_nothing_is_written_without_a_tokenizer(draw):
    figure, _ = draw(make_steps())
    assert not any(axes.texts for axes in figure.axes)


def test_there_must_be_something_to_draw(tmp_path):
    with pytest.raises(ValueError, match="got none"):
        plot_curve_steps([], tmp_path / "steps.png")
    with pytest.raises(ValueError, match="num_panels must be 1 or more, got 0"):
        plot_curve_steps(make_steps(1), tmp_path / "steps.png", num_panels=0)
