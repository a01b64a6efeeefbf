from dataclasses import dataclass

import pytest
import torch

from hf_targets.masked_diffusion.sampling.sampler import Sampler
from hf_targets.masked_diffusion.sampling.samplers import SAMPLERS, make_sampler
from tests.masked_diffusion.models import make_mdlm
from tests.masked_diffusion.sampling.denoisers import MASK, Product, sample


@dataclass(frozen=True)
class LeftToRight(Sampler):
    """As one would add it from another package: the first masked tokens of each row, so many at once."""

    at_once: int = 1

    def fill(self, window, draw, schedule):
        while (masked := window.masked).any():
            chosen = masked & (masked.cumsum(dim=1) <= self.at_once)
            times = masked.double().mean(dim=1)
            window.fill(chosen, draw(window.log_probabilities(chosen, times)))


@pytest.fixture
def registered():
    SAMPLERS.register("left_to_right", LeftToRight)
    yield
    del SAMPLERS._classes["left_to_right"]


@pytest.mark.usefixtures("registered")
def test_a_sampler_from_outside_is_used_by_its_name_and_as_it_is():
    asked = Product(6)
    assert (sample(asked, (2, 6), "left_to_right").sequences != MASK).all()
    assert len(asked.calls) == 6
    model = make_mdlm()
    outputs = [
        model.generate(
            max_length=9, sampler=sampler, generator=torch.Generator().manual_seed(0), return_dict_in_generate=True
        )
        for sampler in ("left_to_right", LeftToRight(), LeftToRight(at_once=3))
    ]
    assert torch.equal(outputs[0].sequences, outputs[1].sequences)
    assert [output.num_evaluations for output in outputs] == [9, 9, 3]


def test_the_options_of_a_sampler_that_is_made_already_are_its_own():
    with pytest.raises(ValueError, match="num_steps"):
        make_sampler(LeftToRight(at_once=2), num_steps=3)
    assert make_sampler(LeftToRight(at_once=2), num_steps=None) == LeftToRight(at_once=2)
