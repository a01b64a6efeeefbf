import itertools
import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.masked_diffusion.perplexity_bound import EvaluationNoise, PerplexityBound, mean_bound, perplexity_bound
from hf_targets.maths.losses import IGNORED
from tests.masked_diffusion.models import MASK, clean_ids, make_mdlm
from tests.tiny_models import VOCAB

MODEL = make_mdlm()


def rows_of(*lengths: int) -> list[dict]:
    return [{"input_ids": clean_ids(length, seed=length).tolist()} for length in lengths]


def uniform_model(**config):
    model = make_mdlm(**config)
    for parameter in model.get_output_embeddings().parameters():
        torch.nn.init.zeros_(parameter)
    return model


def exact_nelbo(model, ids: torch.Tensor) -> float:
    """Return the bound of a short text by summing over all its masked versions, with each one's share of the times."""
    times = 1e-3 + (1 - 1e-3) * (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    weights = model.schedule.weight(times)
    masked, total = model.schedule.masked(times), 0.0
    for chosen in itertools.product([False, True], repeat=len(ids)):
        where = torch.tensor(chosen)
        if where.any():
            canvas = ids.masked_fill(where, MASK)[None]
            with torch.no_grad():
                logp = model.log_probabilities(canvas, where[None])
            nll = -logp.gather(1, ids[where][:, None]).sum().item()
            count = int(where.sum())
            share = (weights * masked**count * (1 - masked) ** (len(ids) - count)).mean().item()
            total += share * nll
    return total / len(ids)


@pytest.mark.parametrize(
    "config",
    [{}, {"noise_schedule": "cosine"}, {"kind": "curves"}],
    ids=["log_linear", "cosine", "curves"],
)
def test_the_estimate_is_the_bound_within_its_error(config):
    model, row = make_mdlm(**config), {"input_ids": clean_ids(3).tolist()}
    found = perplexity_bound(model, [row] * 60, num_draws=20, batch_size=60)
    assert abs(found.nelbo - exact_nelbo(model, torch.tensor(row["input_ids"]))) < 4 * found.standard_error
    assert found.standard_error < 0.05 * found.nelbo


SHARES = {"log_linear": 1 - 1e-3, "cosine": math.cos(math.pi / 2 * 1e-3)}
"""Of log(V - 1), what the bound of a model that knows nothing is in expectation."""


@pytest.mark.parametrize(("schedule", "share"), SHARES.items())
def test_a_model_that_knows_nothing_is_charged_the_vocabulary_for_what_is_masked(schedule, share):
    found = perplexity_bound(uniform_model(noise_schedule=schedule), rows_of(*[16] * 40), num_draws=12, batch_size=40)
    assert abs(found.nelbo - share * math.log(VOCAB - 1)) < 4 * found.standard_error
    assert found.standard_error < 0.15


@pytest.mark.parametrize("kind", ["plain", "curves"])
def test_batches_and_padding_change_nothing(kind):
    model, rows = make_mdlm(kind), rows_of(5, 16, 2, 9, 9, 1)
    expected = perplexity_bound(model, rows, batch_size=1)
    padded = []
    for number, row in enumerate(rows):
        left, right = [0] * (number % 3), [7] * (4 - number % 3)
        labels = [*left, *row["input_ids"], *right]
        mask = [0] * len(left) + [1] * len(row["input_ids"]) + [0] * len(right)
        padded.append({"input_ids": labels, "attention_mask": mask, "labels": labels})
    for given_rows, batch in ((rows, 4), (rows, 6), (padded, 1), (padded, 4)):
        found = perplexity_bound(model, given_rows, batch_size=batch)
        assert found.nelbo == pytest.approx(expected.nelbo, rel=1e-5)
        assert found.standard_error == pytest.approx(expected.standard_error, rel=1e-3)
        assert found.num_tokens == 42


def test_a_label_of_minus_100_is_given_to_the_model_and_never_counted():
    ids = clean_ids(8).tolist()
    labels = [IGNORED if index % 2 else id_ for index, id_ in enumerate(ids)]
    seen = []
    hook = MODEL.register_forward_hook(lambda module, inputs, output: seen.append(output.canvas[0].tolist()))
    found = perplexity_bound(MODEL, [{"input_ids": ids, "labels": labels}, {"input_ids": ids, "labels": [IGNORED] * 8}])
    hook.remove()
    assert found.num_tokens == 4
    assert len(seen) == found.num_draws == 4
    assert all(canvas[1::2] == ids[1::2] for canvas in seen)
    assert any(MASK in canvas for canvas in seen)


def test_a_seed_gives_the_same_result_and_the_global_state_and_the_model_are_left_alone():
    model, rows = make_mdlm("plain", dropout=0.5).train(), rows_of(16, 9)
    state = torch.get_rng_state()
    found = perplexity_bound(model, rows)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    torch.manual_seed(9)
    assert perplexity_bound(model, rows) == found
    assert perplexity_bound(model.eval(), iter(rows)) == found
    assert perplexity_bound(model, rows, seed=1).nelbo != found.nelbo


def test_the_error_is_that_of_repeated_estimates_and_falls_with_the_root_of_the_draws():
    ids = clean_ids(8, 12)
    all_draws = EvaluationNoise(MODEL, 8, num_draws=192, seed=0).row_nelbos(MODEL, list(range(8)), ids, ids)
    spreads = []
    for draws in (2, 8):
        found = [mean_bound(rows, ids.numel()) for rows in all_draws.split(draws, dim=1)]
        spreads.append(statistics.stdev([nelbo for nelbo, _ in found]))
        assert math.sqrt(statistics.fmean(error**2 for _, error in found)) == pytest.approx(spreads[-1], rel=0.2)
    assert spreads[1] == pytest.approx(spreads[0] / 2, rel=0.2)
    one = perplexity_bound(MODEL, rows_of(3), num_draws=1)
    assert one.standard_error is None and one.interval is None


def test_a_perplexity_and_its_interval_are_exponentials():
    found = PerplexityBound(nelbo=2.0, num_tokens=30, num_words=20, num_draws=4, standard_error=0.1)
    assert found.perplexity == pytest.approx(math.exp(2))
    assert found.per_word == pytest.approx(math.exp(3))
    assert found.interval == pytest.approx((math.exp(2 - 0.3182), math.exp(2 + 0.3182)), rel=1e-4)
    endless = PerplexityBound(1e4, 30, None, 4, 0.1)
    assert (endless.perplexity, endless.per_word) == (math.inf, None)


@given(rows=st.integers(1, 50), draws=st.integers(1, 3), seed=st.integers(0, 2**40))
def test_the_times_of_a_draw_are_spread_evenly_over_the_rows_in_an_order_of_its_own(rows, draws, seed):
    noise = EvaluationNoise(MODEL, rows, num_draws=draws, seed=seed)
    assert noise.times.shape == (draws, rows)
    assert noise.times.min() >= 1e-3 and noise.times.max() <= 1
    gaps = noise.times.sort(dim=1).values.diff(dim=1)
    torch.testing.assert_close(gaps, torch.full_like(gaps, (1 - 1e-3) / rows), rtol=1e-9, atol=0)
    assert len(set(noise.times.min(dim=1).values.tolist())) == draws  # where they begin is random too
    if rows > 20:
        steps = noise.times.diff(dim=1) % (1 - 1e-3)
        assert all(len(draw.round(decimals=6).unique()) > 3 for draw in steps)
        assert len({tuple(draw.tolist()) for draw in steps}) == draws


def test_rows_with_the_same_tokens_and_draws_of_a_row_are_masked_differently():
    noise = EvaluationNoise(MODEL, 2, num_draws=2, seed=0)
    noise.times[:] = 0.5
    ids = clean_ids(1, 64).expand(2, -1)
    first, second = (noise.canvas(draw, [0, 1], ids, torch.ones_like(ids).bool())[0] for draw in (0, 1))
    versions = [*first, *second]
    assert all(0.2 < (row == MASK).float().mean() < 0.8 for row in versions)
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(versions, 2))
    swapped = noise.canvas(0, [1, 0], ids, torch.ones_like(ids).bool())[0]
    assert torch.equal(swapped.flip(0), first)
