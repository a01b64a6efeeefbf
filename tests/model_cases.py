"""The models and Trainers of all targets that owe what every one owes: those of each `tests/*/cases.py`."""

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.model_case import SIDES, ModelCase
from tests.trainer_case import TrainerCase

CASES: dict[str, ModelCase] = {}
TRAINERS: dict[str, TrainerCase] = {}
for _file in sorted(Path(__file__).parent.glob("*/cases.py")):
    _module = import_module(f"tests.{_file.parent.name}.cases")
    CASES |= _module.CASES
    TRAINERS |= getattr(_module, "TRAINERS", {})
ONE_OF_A_CLASS = [name for name, case in CASES.items() if case.stands_for == "class"]
"""One model of each class, for laws that take long."""
ONE_OF_A_KIND = [name for name, case in CASES.items() if case.stands_for]
"""One model of each class, and those with parts that no other model of their class has."""


def parametrized(names: Iterable[str]):
    """Parametrize over the models of these names."""
    chosen = {name: CASES[name] for name in names}
    return pytest.mark.parametrize("case", chosen.values(), ids=chosen)


def models_that_owe(law: str, names: Iterable[str] = tuple(CASES)):
    """Parametrize over the models, all by default, that do not lack a law."""
    assert any(law in CASES[name].lacks for name in names), f"no model lacks {law}; take every_model"
    return parametrized(name for name in names if law not in CASES[name].lacks)


every_model = parametrized(CASES)
every_model_and_side = pytest.mark.parametrize(
    ("case", "side"),
    [
        pytest.param(case, side, id=f"{name}-{side}")
        for name, case in CASES.items()
        for side in SIDES
        if not case.lacks.keys() & {"padding", f"padding on the {side}"}
    ],
)
"""All models, and the sides on which their text, or their source, may be padded."""
every_class = parametrized(ONE_OF_A_CLASS)
every_kind = parametrized(ONE_OF_A_KIND)
every_wrapper_class = parametrized(name for name in ONE_OF_A_CLASS if CASES[name].wraps)
every_writing_wrapper_class = parametrized(
    name for name in ONE_OF_A_CLASS if CASES[name].wraps and "generation" not in CASES[name].lacks
)
every_causal_wrapper_class = parametrized(
    name
    for name in ONE_OF_A_CLASS
    if CASES[name].wraps and not CASES[name].source and "generation" not in CASES[name].lacks
)
every_trainer = pytest.mark.parametrize("case", TRAINERS.values(), ids=TRAINERS)


def trainers_that(owe: Callable[[TrainerCase], Any]):
    """Parametrize over the trainers whose case says so."""
    chosen = {name: case for name, case in TRAINERS.items() if owe(case)}
    return pytest.mark.parametrize("case", chosen.values(), ids=chosen)


def trainers_that_owe(law: str):
    """Parametrize over the trainers that do not lack a law."""
    assert any(law in case.lacks for case in TRAINERS.values()), f"no trainer lacks {law}; take every_trainer"
    return trainers_that(lambda case: law not in case.lacks)
