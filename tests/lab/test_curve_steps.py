from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from hf_targets import CanvasTrace
from lab.curve_steps import CurveStep, curves_of_canvases, curves_of_predictions, plot_curve_steps, principal_plane
from tests.gaussian_diffusion.models import make_difformer
from tests.masked_diffusion.models import CURVES, MASK, make_mdlm, masked_ids
from tests.tiny_seq2seq import pairs

WITH_CURVE = [kind for kind in CURVES if kind != "plain"]


def same(one: CurveStep, other: CurveStep) -> bool:
    fields = ("canvas", "masked", "control_points", "curve", "tokens")
    return all(torch.allclose(getattr(one, name), getattr(other, name), atol=1e-5) for name in fields)


@pytest.mark.parametrize("kind", WITH_CURVE)
def test_the_output_matrix_reads_the_points_of_following_tokens(kind):
    model, canvas = make_mdlm(kind), masked_ids(2, 9)
    (step,) = curves_of_canvases(model, [canvas], row=1)
    assert step.masked.tolist() == (canvas[1] == MASK).tolist()
    logits = step.tokens.float() @ model.get_output_embeddings().weight.T + model.get_output_embeddings().bias
    logits[:, MASK] = -1e6
    expected = model(canvas).logits[1][step.masked]
    assert torch.allclose(logits.log_softmax(dim=-1)[step.masked], expected, atol=1e-4)


def test_a_curve_runs_from_its_first_control_point_through_its_words_to_its_last():
    model = make_mdlm("curve")
    (step,) = curves_of_canvases(model, masked_ids(1, 1, 9), num_points=4001)
    assert torch.allclose(step.curve[[0, -1]], step.control_points[[0, -1]])
    steps = (step.curve[1:] - step.curve[:-1]).norm(dim=1)
    distances, positions = torch.cdist(step.tokens, step.curve).min(dim=1)
    assert (distances <= steps.max()).all()
    assert positions.tolist() == sorted(positions.tolist())
    assert torch.cdist(step.tokens[:1], step.curve[:1]).item() > 10 * steps.max()  # the margin


@pytest.mark.filterwarnings("error:Glyph")
def test_a_trace_of_generation_is_followed_canvas_by_canvas_and_drawn(tmp_path):
    model, trace = make_mdlm("hidden_curves"), CanvasTrace()
    text = model.generate(batch_size=2, max_length=8, generator=torch.Generator().manual_seed(0), streamer=trace)
    steps = curves_of_canvases(model, trace.canvases, row=1)
    assert len(steps) == len(trace.canvases)
    numbers = [int(step.masked.sum()) for step in steps]
    assert numbers == sorted(numbers, reverse=True)
    assert torch.equal(steps[-1].canvas, text[1])
    assert same(steps[0], curves_of_canvases(model, [trace.canvases[0][1:]])[0])
    plot_curve_steps(
        steps, tmp_path / "steps.png", SimpleNamespace(decode=lambda ids: rf" $\{ids[0]}$" "\x02"), num_panels=3
    )
    assert Image.open(tmp_path / "steps.png").format == "PNG"


@pytest.mark.parametrize("kind", ["curve", "curves"])
def test_the_states_that_generation_keeps_are_those_of_its_texts(kind, tmp_path):
    model, source = make_difformer(kind), {name: pairs(2)[name] for name in ("input_ids", "attention_mask")}
    options = {"num_noises": 2, "num_reverse_steps": 7, "selection": "confidence"}
    plain = model.generate(**source, **options, generator=torch.Generator().manual_seed(0))
    output = model.generate(**source, **options, generator=torch.Generator().manual_seed(0), output_predictions=True)
    assert torch.equal(output.sequences, plain) and len(output.control_points) == output.num_evaluations
    steps = curves_of_predictions(model, output, row=1, candidate=1)
    length = len(steps[-1].canvas)
    assert torch.equal(steps[-1].canvas, output.candidates[1, 1, :length])
    for step, words in zip(steps, output.predicted_embeddings, strict=True):
        torch.testing.assert_close(step.tokens.float(), words[1, 1, :length], rtol=1e-3, atol=1e-3)
    plot_curve_steps(steps, tmp_path / "steps.png", num_panels=2)
    with pytest.raises(ValueError, match="output_predictions"):
        curves_of_predictions(make_difformer(), make_difformer().generate(**source, output_predictions=True))


def step_of(control_points: torch.Tensor) -> CurveStep:
    nothing = control_points[:0]
    return CurveStep(torch.zeros(0), torch.zeros(0), control_points, nothing, nothing)


def test_points_of_a_plane_keep_their_distances_and_all_their_variance():
    generator = torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(5, 2, generator=generator, dtype=torch.float64)).Q
    flat = torch.randn(12, 2, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 3.0])
    points = 7 + flat @ axes.T
    plane = principal_plane([step_of(points[:5]), step_of(points[5:])])
    seen = plane.project(points)
    assert torch.allclose(torch.cdist(seen, seen), torch.cdist(flat, flat), atol=1e-6)
    assert torch.allclose(seen.mean(dim=0), torch.zeros(2, dtype=torch.float64), atol=1e-9)
    variances = seen.var(dim=0)
    assert plane.shares[0] + plane.shares[1] == pytest.approx(1)
    assert plane.shares[0] == pytest.approx((variances[0] / variances.sum()).item())
    assert plane.shares[0] > 0.7
