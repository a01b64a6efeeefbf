"""How much words move together, where the answer is known."""

from dataclasses import asdict

import pytest
import torch
from datasets import Dataset

from hf_targets import DependenceSettings, block_dependence, distance_correlation, plot_dependence
from hf_targets.semi_autoregressive.dependence import _disturbed
from tests.semi_autoregressive.models import KINDS, make_block_model
from tests.tiny_backbones import token_ids

ROWS = Dataset.from_dict({"input_ids": token_ids(3, 8).tolist()})
LEVELS = {"dropout_rates": [0.2], "noise_scales": [0.1, 0.5]}


def test_words_that_are_the_same_move_together_and_words_of_chance_do_not():
    draws = torch.Generator().manual_seed(0)
    for together in (True, False):
        model = make_block_model()

        def two_words(hidden, together=together):
            return torch.stack([hidden, -3 * hidden if together else torch.randn(hidden.shape, generator=draws)], 1)

        model.block_logits = two_words
        found = block_dependence(model, ROWS, **LEVELS, num_positions=24, num_samples=40)
        assert [(one.disturbance, one.strength) for one in found] == [("dropout", 0.2), ("noise", 0.1), ("noise", 0.5)]
        for one in found:
            if together:
                assert (one.correlation, one.unbiased) == pytest.approx((1, 1))
            else:
                assert abs(one.unbiased) < 0.1 < one.correlation < 0.99


def test_the_mean_is_that_over_pairs_and_positions():
    model = make_block_model("curve").double()
    (found,) = block_dependence(model, ROWS, noise_scales=[0.3], num_positions=24, num_samples=8, seed=5)
    draws, pairs = torch.Generator().manual_seed(5), {False: [], True: []}
    torch.randperm(24, generator=draws)
    states = model.base_model(torch.tensor(ROWS["input_ids"][:]))[0].flatten(0, 1)
    for state in states:
        logits = model.block_logits(_disturbed(state, "noise", 0.3, 8, draws))
        for unbiased, values in pairs.items():
            values += [
                distance_correlation(logits[:, one], logits[:, other], unbiased=unbiased).item()
                for one, other in ((0, 1), (0, 2), (1, 2))
            ]
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
def test_equal_seeds_give_equal_figures_and_the_mode_of_the_model_stays(kind):
    model = make_block_model(kind).train()
    one, other, third = (
        block_dependence(model, ROWS, **LEVELS, num_positions=4, num_samples=6, seed=seed) for seed in (1, 1, 2)
    )
    assert one == other != third and model.training
    assert all(0 <= entry.correlation <= 1 and -1 <= entry.unbiased <= 1 for entry in one)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"dropout_rates": [0.0]}, r"dropout_rates must be in \(0, 1\), got \[0\.0\]"),
        ({"noise_scales": [-1.0]}, r"noise_scales must be positive, got \[-1\.0\]"),
        ({"dependence_positions": 0}, "dependence_positions must be 1 or more, got 0"),
        ({"dependence_samples": 3}, "dependence_samples must be 4 or more, got 3"),
    ],
)
def test_settings_out_of_range_are_refused(fields, told):
    with pytest.raises(ValueError, match=told):
        DependenceSettings(**fields)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"rows": ROWS.select([])}, "is measured on text, and the rows have none"),
        ({"rows": Dataset.from_dict({"input_ids": [[], []]})}, "is measured on text, and the rows have none"),
        ({"noise_scales": []}, "give dropout_rates or noise_scales"),
        ({"dropout_rates": [1.0]}, r"dropout_rates must be in \(0, 1\), got \[1\.0\]"),
        ({"noise_scales": [float("nan")]}, r"noise_scales must be positive, got \[nan\]"),
        ({"num_positions": 0}, "num_positions must be 1 or more, got 0"),
        ({"num_samples": 3}, "num_samples must be 4 or more, got 3"),
        ({"model": make_block_model().bfloat16()}, "the model has torch.bfloat16; call model.float"),
        ({"rows": Dataset.from_dict({"input_ids": [[1] * 99]})}, r"the model's \d+ positions, and one has 99 tokens"),
    ],
    ids=str,
)
def test_what_cannot_be_measured_is_refused(arguments, told):
    with pytest.raises(ValueError, match=told):
        block_dependence(**{"model": make_block_model(), "rows": ROWS, "noise_scales": [0.1], **arguments})


def test_autocast_changes_nothing():
    model, settings = make_block_model(), DependenceSettings(dependence_positions=2, dependence_samples=4)
    expected = settings.measured(model, ROWS, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert settings.measured(model, ROWS, 0) == expected


def test_the_figure_has_a_panel_for_each_disturbance(tmp_path):
    found = DependenceSettings(dependence_positions=2, dependence_samples=4).measured(make_block_model(), ROWS, 0)
    assert asdict(found[0]).keys() == {"disturbance", "strength", "correlation", "unbiased"}
    by_noise = [one for one in found if one.disturbance == "noise"]
    models = {"words": [found, found], "one seed": [found], "noise alone": [by_noise]}
    plot_dependence(models, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="there must be a measurement to plot"):
        plot_dependence({"words": []}, tmp_path / "none.png")
