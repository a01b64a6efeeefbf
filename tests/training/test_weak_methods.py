import inspect

from hf_targets.training.weak_methods import WeaklyBound


class Adder:
    def __init__(self, number):
        self.number = number
        self.held = WeaklyBound(self.add, otherwise="gone")

    def add(self, other, *, twice=False):
        return self.number + other * (2 if twice else 1)


def test_it_calls_the_method_while_its_object_lives_and_then_returns_what_was_said():
    adder = Adder(3)
    held = adder.held
    assert held(4) == 7 and held(4, twice=True) == 11
    adder.number = 5
    assert held(1) == 6
    del adder
    assert held(4) == "gone"


def test_its_signature_names_no_argument_that_a_program_may_look_for():
    assert "compute_result" not in inspect.signature(Adder(3).held).parameters
