"""Heads on the decoder that predict the embeddings of words further on: word differences in a diffusion model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import Tensor, nn

from hf_targets.maths.differences import reconstruction_conjugates
from hf_targets.maths.losses import ngram_weights
from hf_targets.multitoken.heads import HEADS, Head


@dataclass(frozen=True)
class HeadSettings:
    """The heads of a diffusion model, the field `multitoken` of its configuration.

    Attributes:
        ngram_size: N: words predicted at each position, including its own; 2 or more.
        target: "difference": word differences; "embedding": the words themselves.
        loss_weight: Alpha, the weight of the mean of the heads' losses, 0 or more.
        head: A kind of head that reads hidden states alone: "mlp", "medusa", or a registered one.
        head_bias: Whether the linear layers of the heads have a bias.
    """

    ngram_size: int = 2
    target: str = "difference"
    loss_weight: float = 1.0
    head: str = "mlp"
    head_bias: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.ngram_size, int) or self.ngram_size < 2:
            raise ValueError(f"ngram_size (N) of multitoken must be an integer, 2 or more, got {self.ngram_size!r}")
        if self.target not in ("difference", "embedding"):
            raise ValueError(f"target of multitoken must be 'difference' or 'embedding', got {self.target!r}")
        if not isinstance(self.loss_weight, int | float) or not 0 <= self.loss_weight < float("inf"):
            raise ValueError(f"loss_weight (alpha) of multitoken must be a number, 0 or more, got {self.loss_weight!r}")
        kinds = [name for name in HEADS if not HEADS[name].reads_conjugate]
        if self.head not in kinds:
            raise ValueError(f"head of multitoken must be one of {', '.join(kinds)}, got {self.head!r}")

    @classmethod
    def of(cls, values: Any) -> "HeadSettings | None":
        """Return the settings that a dictionary of their fields describes; None for None.

        Raises:
            ValueError: If a field is unknown or out of range.
        """
        if values is None:
            return None
        names = [entry.name for entry in fields(cls)]
        if unknown := values.keys() - set(names):
            raise ValueError(f"multitoken has no field {', '.join(sorted(unknown))}; there are {', '.join(names)}")
        return cls(**values)


class FutureEmbeddings(nn.Module):
    """Heads 1 to N - 1: at position i head n predicts the embedding of word i + n.

    z_hat = project(MLP_n(h)) + conjugate of z_i ... z_(i + n - 1). The heads are as wide as the decoder; its own
    projection makes embeddings of what they give.

    Source: Heo et al., "Diverse Target Representations for Language Models with Word Difference Representations",
        equation (12). The paper's heads add about .5M parameters each at width 512, as these do.
    """

    def __init__(self, settings: HeadSettings, width: int) -> None:
        super().__init__()
        self.differences = settings.target == "difference"
        kind = cast(type[Any], HEADS[settings.head])
        self.layers = nn.ModuleList(kind(width, bias=settings.head_bias) for _ in range(settings.ngram_size - 1))

    def forward(self, hidden: Tensor, embeddings: Tensor, project: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Return for head n its predictions of words n to T - 1, (batch, time - n, latent); none if there are none.

        Args:
            hidden: (batch, time, hidden), the decoder's last states.
            embeddings: (batch, time, latent), of the words: the text's own in training, predicted ones in decoding.
            project: Makes embeddings of hidden states.
        """
        predictions, time = [], hidden.shape[1]
        for n, head in enumerate(self.layers, start=1):
            predicted = project(cast(Head, head)(hidden[:, : max(time - n, 0)]))
            if self.differences and time > n:
                predicted = predicted + reconstruction_conjugates(embeddings, n)[:, : time - n].to(predicted.dtype)
            predictions.append(predicted)
        return predictions


def squared_errors(predicted: Tensor, clean: Tensor) -> Tensor:
    """Return the mean squared error of each embedding's dimension, (batch, time), in float32 at least."""
    wide = torch.promote_types(predicted.dtype, torch.float32)
    return (predicted.to(wide) - clean.to(wide)).square().mean(dim=-1)


def weighted_errors(
    own: Tensor, predictions: Sequence[Tensor], clean: Tensor, is_target: Tensor, loss_weight: float
) -> Tensor:
    """Return the diffusion loss of each row, (batch,): half its own, and alpha / (2N - 2) of each head's, summed.

    Args:
        own: (batch,), the summed errors of the ordinary predictions.
        predictions: As `FutureEmbeddings` gives them.
        clean: (batch, time, latent), the text's embeddings.
        is_target: (batch, time), bool.
    Source: Heo et al., equation (11), averaged as equation (6) has it.
    """
    first, *others = ngram_weights(len(predictions), loss_weight)
    total = first * own
    for n, (weight, predicted) in enumerate(zip(others, predictions, strict=True), start=1):
        errors = squared_errors(predicted, clean[:, n:]).masked_fill(~is_target[:, n:], 0.0)
        total = total + weight * errors.sum(dim=1)
    return total
