import pytest
import torch

from hf_targets.curves.k_curves import CurveMixture


@pytest.fixture
def mixture():
    return CurveMixture(6, 3)


def test_each_text_is_copied_behind_every_curves_token(mixture):
    points = torch.randn(2, 4, 6)
    expanded = mixture(points)
    assert expanded.shape == (6, 5, 6)
    for row in range(2):
        for curve in range(3):
            assert torch.equal(expanded[3 * row + curve, 0], mixture.tokens[curve])
            assert torch.equal(expanded[3 * row + curve, 1:], points[row])


def test_tokens_are_real_wherever_their_copies_are_padded(mixture):
    keep = torch.tensor([[True, True, False], [True, False, False]])
    expanded = mixture.expand_keep(keep)
    assert expanded.shape == (6, 4)
    assert expanded[:, 0].all()
    assert torch.equal(expanded[:, 1:], keep.repeat_interleave(3, dim=0))
    assert torch.equal(mixture.expand_keep(keep.long()), expanded.long())


def test_training_mixes_curves_by_probability_and_anything_else_takes_the_best(mixture):
    hidden = torch.randn(6, 5, 6)
    points, probabilities = mixture.train().select(hidden)
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(2))
    for row in range(2):
        scores = torch.stack([mixture.scorer(hidden[3 * row + curve, 0])[0] for curve in range(3)])
        torch.testing.assert_close(probabilities[row], scores.softmax(0))
        expected = sum(probabilities[row, curve] * hidden[3 * row + curve, 1:] for curve in range(3))
        torch.testing.assert_close(points[row], expected)
    points, again = mixture.eval().select(hidden)
    assert torch.equal(again, probabilities)
    for row in range(2):
        assert torch.equal(points[row], hidden[3 * row + probabilities[row].argmax(), 1:])


def test_curves_that_are_alike_are_what_is_selected_either_way(mixture):
    points = torch.randn(2, 4, 6)
    hidden = mixture(points)
    for mode in (True, False):
        torch.testing.assert_close(mixture.train(mode).select(hidden)[0], points)


def test_probabilities_are_float32_in_a_half_precision_model(mixture):
    points, probabilities = mixture.bfloat16().select(mixture(torch.randn(2, 4, 6, dtype=torch.bfloat16)))
    assert points.dtype == torch.bfloat16
    assert probabilities.dtype == torch.float32
