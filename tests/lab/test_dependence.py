"""How much words move together, where the answer is known."""

import pytest
import torch
from datasets import Dataset

from hf_targets.evaluation.distance_correlation import distance_correlations
from lab.dependence import _disturbed, block_dependence
from tests.semi_autoregressive.models import KINDS, make_block_model
from tests.tiny_backbones import token_ids

ROWS = Dataset.from_dict({"input_ids": token_ids(3, 8).tolist()})
LEVELS = {"dropout_rates": [0.2], "noise_scales": [0.1, 0.5], "num_positions": 24, "num_samples": 40}


def test_words_that_are_the_same_move_together_and_words_of_chance_do_not():
    draws = torch.Generator().manual_seed(0)
    for together in (True, False):
        model = make_block_model()

        def two_words(hidden, together=together):
            return torch.stack([hidden, -3 * hidden if together else torch.randn(hidden.shape, generator=draws)], 1)

        model.block_logits = two_words
        found = block_dependence(model, ROWS, **LEVELS)
        assert [(one.disturbance, one.strength) for one in found] == [("dropout", 0.2), ("noise", 0.1), ("noise", 0.5)]
        for one in found:
            if together:
                assert (one.correlation, one.unbiased) == pytest.approx((1, 1))
            else:
                assert abs(one.unbiased) < 0.1 < one.correlation < 0.99


def test_the_mean_is_that_over_pairs_and_positions():
    model = make_block_model("curve").double()
    (found,) = block_dependence(
        model, ROWS, **LEVELS | {"dropout_rates": [], "noise_scales": [0.3], "num_samples": 8}, seed=5
    )
    draws, pairs = torch.Generator().manual_seed(5), {False: [], True: []}
    torch.randperm(24, generator=draws)
    states = model.base_model(torch.tensor(ROWS["input_ids"][:]))[0].flatten(0, 1)
    for state in states:
        logits = model.block_logits(_disturbed(state, "noise", 0.3, 8, draws))
        for unbiased, values in pairs.items():
            found_pairs = distance_correlations(logits.transpose(0, 1), unbiased=unbiased)
            values += [found_pairs[pair].item() for pair in ((0, 1), (0, 2), (1, 2))]
    expected = [sum(values) / len(values) for values in pairs.values()]
    assert [found.correlation, found.unbiased] == pytest.approx(expected, rel=1e-6)


def test_disturbances_have_the_strength_that_they_say():
    state, draws = torch.randn(32), torch.Generator().manual_seed(0)
    noisy = _disturbed(state, "noise", 0.25, 50, draws)
    torch.testing.assert_close((noisy - state).norm(dim=1), 0.25 * state.norm().expand(50))
    dropped = _disturbed(state, "dropout", 0.25, 2000, draws)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], (state / 0.75).expand(2000, -1)[kept])
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_seeds_give_equal_figures(kind):
    model = make_block_model(kind)
    one, other, third = (block_dependence(model, ROWS, num_positions=4, num_samples=6, seed=seed) for seed in (1, 1, 2))
    assert one == other != third
    assert all(0 <= entry.correlation <= 1 and -1 <= entry.unbiased <= 1 for entry in one)
