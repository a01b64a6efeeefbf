import re
from abc import ABC, abstractmethod
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from hf_targets import HEADS, MINERS, SAMPLERS, Head, Sampler
from hf_targets.registry import Registry


class Base(ABC):
    @abstractmethod
    def fill(self):
        """Left open."""


class Good(Base):
    def fill(self):
        pass


def make() -> Registry:
    return Registry("sampler", Base, needs=("fill",), reserved=("none",))


def test_what_is_registered_is_found_by_its_name():
    registry = make()
    assert registry.register("mine", Good) is registry["mine"] is Good
    assert registry.register("mine", Good) is Good  # a module that is read twice
    assert list(registry) == ["mine"] and len(registry) == 1 and "other" not in registry and ["mine"] not in registry


@pytest.mark.parametrize(
    ("name", "cls", "told"),
    [
        ("taken", type("Other", (Good,), {}), "the sampler 'taken' is Good already; register Other under another name"),
        ("none", Good, "'none' is a reserved name of a sampler; register Good under another name"),
        ("open", type("Open", (Base,), {}), "a sampler must implement fill; Open lacks fill"),
        ("number", type("Number", (Base,), {"fill": 3}), "Number lacks fill"),
        ("foreign", type("Foreign", (), {"fill": print}), "a sampler must be a class derived from Base, got Foreign"),
        ("instance", Good(), "a sampler must be a class derived from Base, got <"),
        ("a name", Good, "the name of a sampler must be an identifier, got 'a name'"),
        ("", Good, "must be an identifier, got ''"),
        (None, Good, "must be an identifier, got None"),
    ],
)
def test_what_cannot_be_registered_is_told_why(name, cls, told):
    registry = make()
    registry.register("taken", Good)
    with pytest.raises(ValueError, match=re.escape(told)):
        registry.register(name, cls)
    assert list(registry) == ["taken"]


@pytest.mark.parametrize("name", ["three", None, ["one"]])
def test_a_name_that_is_not_there_is_told_with_those_that_are(name):
    registry = make()
    registry.register("one", Good)
    registry.register("two", Good)
    with pytest.raises(ValueError, match=re.escape(f"sampler must be one of one, two, got {name!r}")):
        registry[name]


@dataclass(frozen=True)
class NoFill(Sampler):
    steps: int = 1


class NoForward(Head):
    pass


class NoTask:
    def spans(self, text):
        return text


@pytest.mark.parametrize(
    ("registry", "cls", "told"),
    [
        (SAMPLERS, NoFill, "a sampler must implement fill; NoFill lacks fill"),
        (SAMPLERS, Good, "a sampler must be a class derived from Sampler, got Good"),
        (HEADS, NoForward, "a head must implement forward; NoForward lacks forward"),
        (HEADS, nn.Linear, "a head must be a class derived from Head, got Linear"),
        (HEADS, NoForward(), "a head must be a class derived from Head, got NoForward()"),
        (MINERS, NoTask, "a phrase miner must implement spans, for_task; NoTask lacks for_task"),
    ],
)
def test_a_plug_in_that_lacks_a_method_is_refused(registry, cls, told):
    before = list(registry)
    with pytest.raises(ValueError, match=re.escape(told)):
        registry.register("mine", cls)
    assert list(registry) == before


@pytest.mark.parametrize(("registry", "name"), [(HEADS, "wdr"), (HEADS, "simple"), (MINERS, "none"), (MINERS, "fmm")])
def test_names_that_mean_something_already_are_refused(registry, name):
    mine = type("Mine", (Head, NoTask), {"forward": torch.abs, "for_task": print, "spans": print})
    with pytest.raises(ValueError, match=r"is a reserved name|already"):
        registry.register(name, mine)
