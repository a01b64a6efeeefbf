import pytest
import torch

from hf_targets import CurveConfig
from hf_targets.maths.bsplines import basis_matrix
from tests.masked_diffusion.models import CURVES, MASK, make_mdlm, masked_ids
from tests.masked_diffusion.reference import logits_of_row, published_state, subs

IDENTITY = {"num_control_points_ratio": 1.0, "degree": 1, "margin": 0.0}  # N = L and B = I
kinds = pytest.mark.parametrize("kind", CURVES)
curved = pytest.mark.parametrize("kind", [kind for kind in CURVES if kind != "plain"])


def with_curve(model, **fields):
    return model.with_curve(CurveConfig(**fields))


@kinds
@pytest.mark.parametrize("time_conditioning", [False, True])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_rows_are_what_the_formulas_give(kind, time_conditioning, mode):
    mask = 17 if time_conditioning else MASK
    model = make_mdlm(kind, time_conditioning=time_conditioning, mask_token_id=mask).double().train(mode == "train")
    rows, times = [masked_ids(1, 7, seed=seed)[0] for seed in range(3)], torch.tensor([0.2, 0.5, 1.0]).double()
    rows = [row.masked_fill(row == MASK, mask) for row in rows]
    logits = model(torch.stack(rows), timesteps=times).logits
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(3, 7).double())
    state = published_state(model)
    for row, time, got in zip(rows, times, logits, strict=True):
        sigma = -torch.log(1 - 0.999 * time).item() if time_conditioning else 0.0
        expected = logits_of_row(model, row, sigma, state)
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("place", ["input", "hidden"])
def test_a_curve_with_a_control_point_a_token_is_plain_mdlm_bit_for_bit(place):
    plain, canvas = make_mdlm(), masked_ids(3, 9)
    model = with_curve(plain, **IDENTITY, place=place)
    assert torch.equal(model(canvas).logits, plain(canvas).logits)
    assert model(canvas).control_points.shape == (3, 9, 32)


def test_all_layers_on_control_points_is_the_place_of_the_paper_bit_for_bit():
    model, canvas = make_mdlm("curve"), masked_ids(3, 9)
    hidden = with_curve(model, degree=2, place="hidden", num_curve_layers=3)
    assert torch.equal(hidden(canvas).logits, model(canvas).logits)


def test_more_layers_on_control_points_than_there_are_is_refused():
    with pytest.raises(ValueError, match="num_curve_layers"):
        with_curve(make_mdlm(), place="hidden", num_curve_layers=4)


@curved
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_logits_are_those_of_the_points_of_the_predicted_curve(kind, mode):
    model, canvas = make_mdlm(kind).double().train(mode == "train"), masked_ids(3, 9)
    output, curve, state = model(canvas), model.config.curve, published_state(model)
    count = curve.num_control_points_for(9)
    assert output.control_points.shape == (3, count, 32)
    basis = basis_matrix(9, count, curve.degree_for(9), curve.margin)
    for row in range(3):
        points = (output.control_points[row].T @ basis).T
        expected = subs(state, points, canvas[row], MASK)
        torch.testing.assert_close(output.logits[row], expected, rtol=1e-10, atol=1e-10)
