import copy
import gc
import inspect
import pickle

import pytest

from hf_targets.training.weak_methods import WeaklyBound


class Adder:
    def __init__(self, number):
        self.number = number
        self.held, self.hook = WeaklyBound(self.add), WeaklyBound(self.add, is_needed=False)

    def add(self, other, *, twice=False, compute_result=False):
        return self.number + other * (2 if twice else 1)


def test_it_calls_the_method_while_its_object_lives():
    adder = Adder(3)
    held, hook = adder.held, adder.hook
    assert held(4) == hook(4) == 7 and held(4, twice=True) == 11
    adder.number = 5
    assert held(1) == 6
    del adder
    gc.collect()
    assert hook(4) is None
    with pytest.raises(ReferenceError, match="a method of a trainer that is gone; keep the trainer"):
        held(4)
    assert pickle.loads(pickle.dumps(hook))(4) is None


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_is_bound_to_the_copy_of_the_object(copied):
    adder = Adder(3)
    other = copied(adder)
    other.number = 10
    assert other.held(1) == other.hook(1) == 11 and adder.held(1) == 4


def test_its_signature_names_no_argument_that_a_program_may_look_for():
    assert "compute_result" not in inspect.signature(Adder(3).held).parameters
