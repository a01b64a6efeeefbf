"""The kinds of heads: what one makes of a hidden state, alone or with the tokens since then."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_targets.backbones.zero_init_linear import ZeroInitLinear
from hf_targets.registry import Registry


class Head(nn.Module):
    """One head; a kind has this as its base and is made with `width` (d) and `bias`.

    Its `forward(hidden)` maps hidden states (..., d) to predicted embeddings or differences (..., d). A kind that reads
    the conjugate of a word difference has `forward(hidden, conjugate)` instead: its target must be a difference.

    Attributes:
        reads_conjugate: Whether it does.
    """

    reads_conjugate: ClassVar[bool] = False


class MlpHead(Head):
    """Two d x d linear layers with ReLU between them: the paper's head, 8.39M parameters at d = 2048.

    Source: Heo et al., equation (4) and appendix A.3.1. That the layers keep the width d is derived from the counts
        given there; whether they have biases cannot be told from them.
    """

    def __init__(self, width: int, *, bias: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width, bias=bias)
        self.outer = nn.Linear(width, width, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states (..., d) to predicted embeddings or differences (..., d)."""
        return self.outer(F.relu(self.inner(hidden)))


class MedusaHead(Head):
    """x + SiLU(W x + b), the identity at the start.

    Source: Cai et al. 2024, "Medusa", section 2.1.1.
    Departs: there b keeps its random start; ours is zero, so that a new head is exactly the identity.
    """

    def __init__(self, width: int, *, bias: bool) -> None:
        super().__init__()
        self.linear = ZeroInitLinear(width, width, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states (..., d) to predicted embeddings or differences (..., d)."""
        return hidden + F.silu(self.linear(hidden))


class ConditionalHead(Head):
    """The paper's head on the hidden state and the conjugate: two linear layers, 2d -> d -> d, with ReLU between them.

    Both inputs are brought to root mean square 1 first, as their lengths differ by the model.

    Departs: the paper's head sees the hidden state alone, and the tokens since then only enter by being added to what
        it says. Reading them too, as Hydra's draft heads do (Ankner et al. 2024), makes its drafts right more often.
    """

    reads_conjugate = True

    def __init__(self, width: int, *, bias: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(2 * width, width, bias=bias)
        self.outer = nn.Linear(width, width, bias=bias)

    def forward(self, hidden: Tensor, conjugate: Tensor) -> Tensor:
        """Map hidden states and conjugates (..., d) to predicted differences (..., d)."""
        read = [F.rms_norm(part, part.shape[-1:]) for part in (hidden, conjugate)]
        return self.outer(F.relu(self.inner(torch.cat(read, dim=-1))))


HEADS: Registry[type[Head]] = Registry("head", Head, needs=("forward",), reserved=("simple", "wdr"))
"""The kinds by the name that `MultiTokenConfig.head` takes; `HEADS.register("mine", Mine)` adds one.

The reserved names are of heads together with a target, `multitoken.draft_heads.KINDS`."""

HEADS.register("mlp", MlpHead)
HEADS.register("medusa", MedusaHead)
HEADS.register("conditional", ConditionalHead)
