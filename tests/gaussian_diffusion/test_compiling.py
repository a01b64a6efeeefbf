"""Compiled, batches of several sizes, whose noise the model draws, give the same loss and gradients."""

import pytest

from tests.programs import run_program

_COMPILED = """
from tests.compiled import assert_same_compiled
from tests.gaussian_diffusion.models import make_difformer, noisy_pairs

model = make_difformer("dinoiser", num_hidden_layers=1)
batches = [noisy_pairs(model, num_rows) for num_rows in (3, 4)]
names = ("input_ids", "attention_mask", "labels")
given = [{"self_condition": None, **{name: batch[name] for name in names}} for batch in batches]
assert_same_compiled("dinoiser", model, given, fullgraph=False, dynamic=True)
print("same")
"""


@pytest.mark.compiled
def test_compiling_gives_the_same_loss_and_gradients():
    # in a process of its own: the shape checks of the test run cannot be compiled
    done = run_program(_COMPILED)
    assert done.stdout.endswith("same\n"), done.stderr
    assert "Dynamo" not in done.stderr, done.stderr
