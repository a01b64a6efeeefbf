from dataclasses import dataclass

import pytest

from hf_targets.masked_diffusion.sampling import make_sampler
from hf_targets.masked_diffusion.sampling.sampler import Sampler
from tests.masked_diffusion.models import make_mdlm


@dataclass(frozen=True)
class LeftToRight(Sampler):
    """As one would write it in another package: the first masked tokens of each row, so many at once."""

    at_once: int = 1

    def fill(self, window, draw, schedule):
        while (masked := window.masked).any():
            chosen = masked & (masked.cumsum(dim=1) <= self.at_once)
            window.fill(chosen, draw(window.log_probabilities(chosen, masked.double().mean(dim=1))))


def test_a_sampler_from_outside_is_used_as_it_is_and_takes_no_options():
    given = {"max_length": 9, "return_dict_in_generate": True}
    outputs = [make_mdlm().generate(sampler=LeftToRight(at_once=count), **given) for count in (1, 3)]
    assert [output.num_evaluations for output in outputs] == [9, 3]
    with pytest.raises(ValueError, match="num_steps"):
        make_sampler(LeftToRight(), num_steps=3)
