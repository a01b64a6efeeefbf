"""Equations (4) to (6), (10) and (13) term by term, from last hidden states: what the loss and the ensemble must be."""

import torch
from torch.nn import functional as F

from hf_targets.backbones.output_matrix import OutputMap
from hf_targets.maths.differences import conjugate_coefficients


def equations(model, hidden, tokens, targets=None, weight=0.0):
    """Return the loss, each of its parts, and the logits of the ensemble.

    Args:
        hidden: (batch, time, d), last hidden states.
        tokens: (batch, time), what was read.
        targets: (batch, time), the target of each position, -100 where there is none.
    """
    config = model.config
    output, matrix = OutputMap.of(model.backbone, config.output_scale), model.get_output_embeddings().weight
    num_heads = config.ngram_size - 1
    sums, logits = [hidden.new_zeros(()) for _ in range(num_heads + 1)], []

    def predicted(row, at, n):
        """What head n says at a position for the target of position at + n."""
        rows = [matrix.detach()[tokens[row, at + 1 + j]] for j in range(n)]
        conjugate = sum(c * one for c, one in zip(conjugate_coefficients(n), rows, strict=True))
        head, state = model.heads[n - 1], hidden[row, at]
        said = head(state, conjugate) if config.head == "conditional" else head(state)
        return said + conjugate if config.target == "difference" else said

    for row in range(len(tokens)):
        for at in range(tokens.shape[1]):
            said = [predicted(row, at - n, n) for n in range(1, min(num_heads, at) + 1)]
            state = hidden[row, at]
            logits.append(output((1 - weight) * state + weight * sum(said) / len(said) if said else state))
            if targets is not None and targets[row, at] >= 0:
                for n, prediction in enumerate((state, *said)):
                    sums[n] = sums[n] + F.cross_entropy(output(prediction), targets[row, at])
    count = 1 if targets is None else max(int((targets >= 0).sum()), 1)
    loss = 0.5 * sums[0] / count + config.loss_weight / (2 * num_heads) * sum(sums[1:]) / count
    return loss, torch.stack(sums) / count, torch.stack(logits).view(*tokens.shape, -1)
