"""Compiled, batches of several sizes, whose noise the model draws, give the same loss and gradients."""

from tests.programs import run_program

_COMPILED = """
import torch
from tests.gaussian_diffusion.models import make_difformer, noisy_pairs

for kind in ("dinoiser", "curve", "heads"):
    torch._dynamo.reset()
    model = make_difformer(kind, num_hidden_layers=1).train()
    compiled = torch.compile(model, backend="aot_eager")
    for num_rows in (3, 4):  # of the second size on, sizes are variables of the graph
        batch = noisy_pairs(model, num_rows)
        given = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
        results = []
        for run in (model, compiled):
            torch.manual_seed(0)
            loss = run(**given, self_condition=None if kind == "dinoiser" else True).loss
            loss.backward()
            results.append((loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)))
            model.zero_grad()
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=lambda text: f"{kind}: {text}")
print("same")
"""


def test_compiling_gives_the_same_loss_and_gradients():
    # in a process of its own: the shape checks of the test run cannot be compiled
    done = run_program(_COMPILED)
    assert done.stdout.endswith("same\n"), done.stderr
    assert "Dynamo" not in done.stderr, done.stderr
