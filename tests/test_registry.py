import re
from abc import ABC, abstractmethod

import pytest
import torch

from hf_targets import MINERS
from hf_targets.multitoken.heads import HEADS, Head
from hf_targets.registry import Registry


class Base(ABC):
    @abstractmethod
    def fill(self):
        """Left open."""


class Good(Base):
    def fill(self):
        pass


def make() -> Registry:
    return Registry("sampler", Base, reserved=("none",))


def test_what_is_registered_is_found_by_its_name():
    registry = make()
    assert registry.register("mine", Good) is registry["mine"] is Good
    assert registry.register("mine", Good) is Good  # a module that is read twice
    assert list(registry) == ["mine"] and len(registry) == 1 and "other" not in registry and ["mine"] not in registry
    assert registry.get("other") is None
    with pytest.raises(ValueError, match="sampler must be one of mine, got 'three'"):
        registry["three"]


@pytest.mark.parametrize(
    ("name", "cls", "told"),
    [
        ("taken", type("Other", (Good,), {}), "'taken' is no identifier, or the name of another"),
        ("none", Good, "the name of another sampler"),
        ("foreign", type("Foreign", (), {"fill": print}), "derived from Base, got Foreign"),
        ("instance", Good(), "derived from Base, got <"),
        ("a name", Good, "'a name' is no identifier"),
    ],
)
def test_what_cannot_be_registered_is_told_why(name, cls, told):
    registry = make()
    registry.register("taken", Good)
    with pytest.raises(ValueError, match=re.escape(told)):
        registry.register(name, cls)
    assert list(registry) == ["taken"]


@pytest.mark.parametrize(("registry", "name"), [(HEADS, "wdr"), (HEADS, "simple"), (MINERS, "none"), (MINERS, "fmm")])
def test_names_that_mean_something_already_are_refused(registry, name):
    mine = type("Mine", (Head,), {"forward": torch.abs})
    with pytest.raises(ValueError, match="the name of another"):
        registry.register(name, mine)
