"""The kinds of heads: networks that read a hidden state, and perhaps the conjugate of a word difference."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_targets.backbones.new_parts import ZeroInitLinear
from hf_targets.registry import Registry


class Head(nn.Module):
    """Base class of a head; a kind derives from it and is made with `width` (d) and `bias`.

    Its `forward(hidden)` maps hidden states (..., d) to predicted embeddings or differences (..., d). A kind that reads
    the conjugate of a word difference has `forward(hidden, conjugate)` instead; its target must be a difference.

    Attributes:
        reads_conjugate: Whether `forward` takes the conjugate.
    """

    reads_conjugate: ClassVar[bool] = False


class MlpHead(Head):
    """Two d x d linear layers with ReLU between them: the paper's head, 8.39M parameters at d = 2048.

    Source: Heo et al., equation (4) and appendix A.3.1. The paper gives only parameter counts: they imply that both
        layers have width d, and leave open whether the layers have biases.
    """

    def __init__(self, width: int, *, bias: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width, bias=bias)
        self.outer = nn.Linear(width, width, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states (..., d) to predicted embeddings or differences (..., d)."""
        return self.outer(F.relu(self.inner(hidden)))


class MedusaHead(Head):
    """x + SiLU(W x + b), which is the identity before training.

    Source: Cai et al. 2024, "Medusa", section 2.1.1.
    Departs: Medusa initialises b at random; we set it to zero, so that a new head is exactly the identity.
    """

    def __init__(self, width: int, *, bias: bool) -> None:
        super().__init__()
        self.linear = ZeroInitLinear(width, width, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states (..., d) to predicted embeddings or differences (..., d)."""
        return hidden + F.silu(self.linear(hidden))


class ConditionalHead(Head):
    """The paper's head applied to hidden state and conjugate: linear layers 2d -> d -> d with ReLU between them.

    Both inputs are first scaled to root mean square 1, as the ratio of their lengths depends on the model.

    Departs: the paper's head reads only the hidden state, and the conjugate is only added to its output. Our head also
        reads the conjugate, as Hydra's draft heads read earlier tokens (Ankner et al. 2024); more drafts are accepted.
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
"""The kinds of heads by the names that `MultiTokenConfig.head` takes; `HEADS.register("mine", Mine)` adds one.

Reserved names stand for a head together with a target, in `multitoken.draft_heads.KINDS`."""

HEADS.register("mlp", MlpHead)
HEADS.register("medusa", MedusaHead)
HEADS.register("conditional", ConditionalHead)
