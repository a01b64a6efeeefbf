"""Future-word heads: small networks that share the output matrix of the model they sit on, or bring their own."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_targets.backbones.weight_access import call_inside
from hf_targets.backbones.zero_linear import ZeroLinear
from hf_targets.maths.differences import reconstruction_conjugates
from hf_targets.multitoken.configuration import MultiTokenConfig


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


class ConditionalHead(nn.Module):
    """The paper's head on the hidden state and the conjugate: two linear layers, 2d -> d -> d, with ReLU between them.

    Both inputs are brought to root mean square 1 first, as their lengths differ by the model.

    Departs: the paper's head sees the hidden state alone, and the words since then only enter by being added to what it
        says. Reading them too, as Hydra's draft heads do (Ankner et al. 2024), makes its drafts right more often.
    """

    def __init__(self, width: int, *, bias: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(2 * width, width, bias=bias)
        self.outer = nn.Linear(width, width, bias=bias)

    def forward(self, hidden: Tensor, conjugate: Tensor) -> Tensor:
        """Map hidden states and conjugates (..., d) to predicted differences (..., d)."""
        read = [F.rms_norm(part, part.shape[-1:]) for part in (hidden, conjugate)]
        return self.outer(F.relu(self.inner(torch.cat(read, dim=-1))))


_KINDS = {"mlp": MlpHead, "medusa": MedusaHead, "conditional": ConditionalHead}


class FutureHeads(nn.Module):
    """Heads 1 to N - 1; `heads[n - 1]` is head n, and calling it gives the vector before the conjugate is added.

    A conditional head is called with the conjugate too.

    A module of its own rather than a ModuleList, so that peft can train it through `modules_to_save=["heads"]`.

    Args:
        width: d, the width of the hidden states.
        vocab_size: V, the rows of an output matrix; needed with `own_outputs` only.
    """

    def __init__(self, config: MultiTokenConfig, width: int, vocab_size: int | None = None) -> None:
        super().__init__()
        head = _KINDS[config.head]
        self.conditional = head is ConditionalHead
        self.differences = config.target == "difference"
        self.layers = nn.ModuleList(head(width, bias=config.head_bias) for _ in range(config.ngram_size - 1))
        self.outputs: nn.ModuleList | None = None
        if config.own_outputs:
            assert vocab_size is not None, "heads with output matrices of their own need vocab_size"
            self.outputs = nn.ModuleList(nn.Linear(width, vocab_size, bias=False) for _ in self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int) -> nn.Module:
        return self.layers[index]

    def output(self, n: int, shared: nn.Linear) -> nn.Linear:
        """Return the layer that turns what head n says into logits: its own, or `shared`.

        Args:
            n: 1 to N - 1.
        Raises:
            ValueError: If its own is not a plain linear layer (LoRA on it, say).
        """
        assert 1 <= n <= len(self)
        if self.outputs is None:
            return shared
        layer = self.outputs[n - 1]
        if not isinstance(layer, nn.Linear):
            raise ValueError(
                f"a head's own output layer must be a torch.nn.Linear, got {type(layer).__name__}; leave it out of the "
                "adapter's target_modules and train it whole, with modules_to_save=['heads']"
            )
        return layer

    @torch.no_grad()
    def copy_outputs(self, shared: nn.Linear) -> None:
        """Start the heads' own output matrices, if they have any, at that of `shared`; its bias is left behind."""
        for layer in self.outputs or ():
            call_inside(shared, lambda weight, _, own: own.copy_(weight), layer.weight)

    def states(self, hidden: Tensor, count: int) -> Tensor:
        """Return what heads 1 to `count` make of hidden states (rows, d) before any word is known, (rows, count, d)."""
        if self.conditional:
            return hidden[:, None].expand(-1, count, -1)
        return torch.stack([head(hidden) for head in self.layers[:count]], dim=1)

    def complete(self, n: int, states: Tensor, words: Tensor | None) -> Tensor:
        """Return head n's predicted embeddings (rows, d) from its `states`, given the n words since then.

        Args:
            words: Embeddings (rows, n, d) of those words; not looked at by heads that predict embeddings themselves.
        """
        if words is None or not self.differences:
            return states
        conjugate = reconstruction_conjugates(words, n)[:, 0]
        return (self.layers[n - 1](states, conjugate) if self.conditional else states) + conjugate

    def forward(self, hidden: Tensor, words: Tensor | None, past: int = 0) -> list[Tensor]:
        """Return head n's predicted embeddings that are due among the last positions, for n = 1 to N - 1.

        Args:
            hidden: Hidden states (batch, time, d).
            words: Embeddings of the words at all positions but the first, (batch, time - 1, d); needed for differences.
            past: How many of the positions are there only for what they said of the others.
        Returns: For head n, what it says at positions max(past - n, 0) to time - n - 1, as its word at position i is
            needed n positions later: (batch, time - max(past, n), d). An empty tensor if there are none.
        """
        time, predictions = hidden.shape[1], []
        for n, head in enumerate(self.layers, start=1):
            first = max(past - n, 0)
            seen = hidden[:, first : max(time - n, first)]
            if not self.differences or not seen.shape[1]:
                predictions.append(seen if self.conditional else head(seen))
                continue
            assert words is not None
            conjugates = reconstruction_conjugates(words[:, first:], n)
            said = head(seen, conjugates) if self.conditional else head(seen)
            predictions.append(said + conjugates)
        return predictions
