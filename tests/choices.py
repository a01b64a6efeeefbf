"""Choices among candidates that rounding cannot change.

Two ways to compute the same logits, for example with a cache and without, differ by rounding: by up to 1e-14 in a
float64 model and 1e-5 in a float32 one. Where the best two candidates are as near to each other as that, the texts may
differ though both ways are right; it depends on the processor. Tests that compare texts therefore use float64 models.

GPT-Neo computes its attention in float32 in any model, and its logits differ by up to 2e-6. Tests with GPT-Neo use the
fixture `clear_choices` as well: it fails a test that depends on an unclear choice, which then needs another prompt.

What is sampled depends on the processor too, so no prompt is clear on all of them. A test that samples has the mark
`on_clear_draws` besides: it is repeated with the next seed until its choices are clear.
"""

import functools
from collections.abc import Callable

import pytest
import torch

MARGIN = 1e-5
IMPOSSIBLE = -1e6  # where candidates are masked out, they may tie
NUM_SEEDS = 5


class UnclearChoiceError(AssertionError):
    """A choice that rounding may change."""


def assert_clear(scores: torch.Tensor, count: int = 1, dim: int = -1) -> None:
    """Assert that the best `count` candidates, in any order, lead all others by more than `MARGIN`."""
    if count < scores.shape[dim]:
        best = scores.detach().double().sort(dim=dim, descending=True).values.movedim(dim, -1)
        last, next_one = best[..., count - 1], best[..., count]
        margins = (last - next_one)[last > IMPOSSIBLE]
        if not (margins > MARGIN).all():
            raise UnclearChoiceError(f"candidates {margins.min()} apart may change positions; choose another prompt")


def on_clear_draws(test: Callable) -> Callable:
    """Repeat a test that samples with the next seed until its choices are clear.

    The test draws from the default generator and restarts it by `restart_draws`, never by a seed of its own.
    """

    @functools.wraps(test)
    def repeated(*args, **kwargs):
        for seed in range(NUM_SEEDS):
            torch.manual_seed(seed)
            try:
                return test(*args, **kwargs)
            except UnclearChoiceError:
                if seed == NUM_SEEDS - 1:
                    raise

    return repeated


def restart_draws() -> None:
    """Make the default generator draw again what it drew since its last seed."""
    torch.manual_seed(torch.initial_seed())


def require_clear_choices(patch: pytest.MonkeyPatch) -> None:
    """Make `torch.argmax`, `topk` and `multinomial` assert that their choices are clear."""

    def argmax(choose: Callable):
        def checked(scores, dim=None, *args, **kwargs):
            if scores.is_floating_point():
                assert_clear(scores.flatten() if dim is None else scores, dim=-1 if dim is None else dim)
            return choose(scores, dim, *args, **kwargs)

        return checked

    def topk(choose: Callable):
        def checked(scores, k, dim=-1, *args, **kwargs):
            assert_clear(scores, k, dim)
            return choose(scores, k, dim, *args, **kwargs)

        return checked

    def multinomial(choose: Callable):
        def checked(probabilities, num_samples, *args, generator=None, **kwargs):
            state = (generator or torch.default_generator).get_state()
            waits = torch.empty_like(probabilities).exponential_(generator=generator)
            (generator or torch.default_generator).set_state(state)
            drawn = choose(probabilities, num_samples, *args, generator=generator, **kwargs)
            rates = (probabilities / waits).log()
            assert torch.equal(rates.sort(descending=True).indices[..., :1], drawn[..., :1]), "drawn in another way"
            assert_clear(rates)
            return drawn

        return checked

    for module in (torch, torch.Tensor):
        for checked in (argmax, topk, multinomial):
            patch.setattr(module, checked.__name__, checked(getattr(module, checked.__name__)))
