import pytest
import torch

from hf_targets import CanvasTrace
from hf_targets.masked_diffusion.curve_steps import CurveStep, curves_of_canvases, principal_plane
from tests.masked_diffusion.models import CURVES, MASK, clean_ids, make_mdlm, masked_ids

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


def test_a_trace_of_generation_is_followed_canvas_by_canvas():
    model, trace = make_mdlm("hidden_curves"), CanvasTrace()
    text = model.generate(batch_size=2, max_length=8, generator=torch.Generator().manual_seed(0), streamer=trace)
    steps = curves_of_canvases(model, trace.canvases, row=1)
    assert len(steps) == len(trace.canvases)
    numbers = [int(step.masked.sum()) for step in steps]
    assert numbers == sorted(numbers, reverse=True)
    assert torch.equal(steps[-1].canvas, text[1])
    assert same(steps[0], curves_of_canvases(model, [trace.canvases[0][1:]])[0])


def test_many_canvases_give_what_each_gives_alone():
    model, canvases = make_mdlm("curve"), masked_ids(70, 1, 5)
    steps = curves_of_canvases(model, canvases)
    assert len(steps) == 70
    for position in (0, 31, 32, 69):
        assert same(steps[position], curves_of_canvases(model, canvases[position : position + 1])[0])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_left_out(side):
    model, text = make_mdlm("curve"), masked_ids(1, 5)
    ends = (clean_ids(1, 3, seed=5), text) if side == "left" else (text, clean_ids(1, 3, seed=5))
    keep = torch.cat([torch.full_like(part, part is text) for part in ends], dim=1)
    (padded,) = curves_of_canvases(model, [torch.cat(ends, dim=1)], attention_mask=keep)
    assert same(padded, curves_of_canvases(model, [text])[0])


@pytest.mark.parametrize("kind", ["curve", "curves"])
def test_a_model_in_training_is_looked_at_without_dropout_and_left_in_training(kind):
    model, canvas = make_mdlm(kind, dropout=0.5), masked_ids(1, 6)
    (expected,) = curves_of_canvases(model, [canvas])
    (step,) = curves_of_canvases(model.train(), [canvas])
    assert same(step, expected)
    assert model.training
    assert not step.tokens.requires_grad


def test_a_model_that_sees_the_time_is_told_it():
    model, canvases = make_mdlm("curve", time_conditioning=True), masked_ids(1, 6).repeat(2, 1, 1)
    early, late = curves_of_canvases(model, canvases, timesteps=torch.tensor([0.9, 0.1]))
    assert not torch.allclose(early.control_points, late.control_points)
    with pytest.raises(ValueError, match="needs timesteps"):
        curves_of_canvases(model, canvases)


@pytest.mark.parametrize(
    ("kind", "arguments", "told"),
    [
        ("plain", {}, r"config\.curve=None; train a model with curve=CurveConfig\(\)"),
        ("curve", {"canvases": []}, "there must be a canvas, got none; call generate with streamer"),
        (
            "curve",
            {"canvases": masked_ids(2, 3)},
            r"canvases must be \(batch, length\) each, got \(3,\); give a single row",
        ),
        ("curve", {"row": 2}, r"row must be in \[0, 1\] for 2 rows, got 2"),
        ("curve", {"row": -1}, r"row must be in \[0, 1\] for 2 rows, got -1"),
        ("curve", {"num_points": 1}, "num_points must be 2 or more"),
        ("curve", {"attention_mask": torch.tensor([[1, 0, 1], [1, 1, 1]])}, "row 0 has a hole in it"),
    ],
)
def test_what_cannot_be_shown_is_told(kind, arguments, told):
    with pytest.raises(ValueError, match=told):
        curves_of_canvases(make_mdlm(kind), **{"canvases": [masked_ids(2, 3)], **arguments})


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


def test_shares_are_of_all_directions():
    points = torch.cat([torch.diag(torch.tensor([3.0, 2.0, 1.0])), -torch.diag(torch.tensor([3.0, 2.0, 1.0]))]).double()
    plane = principal_plane([step_of(points)])
    assert plane.shares == pytest.approx((9 / 14, 4 / 14))
    assert plane.axes.tolist() == [[1, 0, 0], [0, 1, 0]]


def test_points_that_do_not_differ_have_no_variance_to_share():
    plane = principal_plane([step_of(torch.ones(4, 3, dtype=torch.float64))])
    assert plane.shares == (0, 0)
    assert plane.project(torch.ones(2, 3, dtype=torch.float64)).tolist() == [[0, 0], [0, 0]]


def test_a_plane_needs_a_step():
    with pytest.raises(ValueError, match="got none"):
        principal_plane([])
