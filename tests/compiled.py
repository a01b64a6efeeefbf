"""What a compiled model owes; for programs of their own, as the shape checks of a test run cannot be compiled."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


def assert_same_logits(name: str, model: nn.Module, batch: dict[str, Any], *, exported: bool) -> None:
    """Assert that a model without labels is one graph, compiled and exported, with the same logits."""
    torch._dynamo.reset()
    with torch.no_grad():
        expected = model.eval()(**batch).logits
        runs = [torch.compile(model, backend="eager", fullgraph=True)]
        if exported:
            runs.append(torch.export.export(model, (), batch, strict=False).module())
        for run in runs:
            torch.testing.assert_close(run(**batch).logits, expected, msg=lambda text: f"{name}: {text}")


def assert_same_compiled(
    name: str,
    model: nn.Module,
    batches: Iterable[dict[str, Any]],
    *,
    fullgraph: bool,
    dynamic: bool | None = None,
    backend: str = "eager",
) -> None:
    """Assert that a model in training has the same loss and gradients as without the compiler, in batch after batch.

    The backend "eager" leaves the graphs of the gradients to autograd: to trace them takes as long as all others.
    """
    torch._dynamo.reset()
    compiled = torch.compile(model.train(), backend=backend, fullgraph=fullgraph, dynamic=dynamic)
    for batch in batches:
        results = []
        for run in (model, compiled):
            torch.manual_seed(0)
            loss = run(**batch).loss
            loss.backward()
            results.append((loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)))
            model.zero_grad()
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=lambda text: f"{name}: {text}")
