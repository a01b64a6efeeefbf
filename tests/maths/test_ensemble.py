import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.maths.ensemble import mix_predictions


def predictions(time: int, num_heads: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    next_token = torch.randn(2, time, 3, dtype=torch.float64, generator=generator)
    steps = [max(time - n, 0) for n in range(1, num_heads + 1)]
    future = [torch.randn(2, s, 3, dtype=torch.float64, generator=generator) for s in steps]
    exists = [torch.rand(2, s, generator=generator) < 0.7 for s in steps]
    return next_token, future, exists


@given(time=st.integers(1, 6), num_heads=st.integers(1, 4), seed=st.integers(0, 99), weight=st.floats(0, 1))
def test_the_mix_is_equation_13_over_the_predictions_that_exist(time, num_heads, seed, weight):
    next_token, future, exists = predictions(time, num_heads, seed)
    mixed = mix_predictions(next_token, future, exists, weight)
    for row in range(2):
        for t in range(time):
            present = [
                vectors[row, t - n]
                for n, (vectors, there) in enumerate(zip(future, exists, strict=True), start=1)
                if t >= n and there[row, t - n]
            ]
            expected = next_token[row, t]
            if present:
                expected = (1 - weight) * expected + weight / len(present) * torch.stack(present).sum(0)
            torch.testing.assert_close(mixed[row, t], expected, rtol=0, atol=1e-12)


def test_a_prediction_that_does_not_exist_may_be_infinite():
    next_token, future, exists = predictions(3, 1, 0)
    future[0][:] = torch.inf
    mixed = mix_predictions(next_token, future, [torch.zeros_like(exists[0])], 0.5)
    assert torch.equal(mixed, next_token)


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan")])
def test_a_weight_outside_the_unit_interval_is_an_error(weight):
    with pytest.raises(ValueError, match="must be in \\[0, 1\\]"):
        mix_predictions(*predictions(3, 1, 0), weight)
