"""Future-word heads: small networks that share the output matrix of the model they sit on."""

from torch import Tensor, nn
from torch.nn import functional as F

from hf_targets.models.multitoken.configuration import MultiTokenConfig


class MlpHead(nn.Module):
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


class ZeroLinear(nn.Linear):
    """A linear layer that the model starts at zero."""


class MedusaHead(nn.Module):
    """x + SiLU(W x + b), the identity at the start.

    Source: Cai et al. 2024, "Medusa", section 2.1.1.
    Departs: there b keeps its random start; ours is zero, so that a new head is exactly the identity.
    """

    def __init__(self, width: int, *, bias: bool) -> None:
        super().__init__()
        self.linear = ZeroLinear(width, width, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states (..., d) to predicted embeddings or differences (..., d)."""
        return hidden + F.silu(self.linear(hidden))


class FutureHeads(nn.Module):
    """Heads 1 to N - 1; `heads[n - 1]` is head n, and calling it gives the vector before the conjugate is added.

    A module of its own rather than a ModuleList, so that peft can train it through `modules_to_save=["heads"]`.
    """

    def __init__(self, config: MultiTokenConfig, width: int) -> None:
        super().__init__()
        head = {"mlp": MlpHead, "medusa": MedusaHead}[config.head]
        self.layers = nn.ModuleList(head(width, bias=config.head_bias) for _ in range(config.ngram_size - 1))

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int) -> nn.Module:
        return self.layers[index]

    def forward(self, hidden: Tensor) -> list[Tensor]:
        """Return what head n says at the positions whose prediction is due within the sequence, for n = 1 to N - 1.

        Args:
            hidden: Hidden states (batch, time, d).
        Returns: For head n, (batch, time - n, d), of the first time - n positions: its word at position i is needed
            n positions later. An empty tensor if there are fewer positions than that.
        """
        time = hidden.shape[1]
        return [head(hidden[:, : max(time - n, 0)]) for n, head in enumerate(self.layers, start=1)]
