"""How a backbone turns its last hidden states, times a scale, into logits: by its output matrix and a bias."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_targets.backbones.backbone import output_embedding
from hf_targets.backbones.weight_access import call_inside
from hf_targets.maths.losses import token_cross_entropy


@dataclass(frozen=True)
class OutputMap:
    """Turns last hidden states, or predicted embeddings, into logits.

    Attributes:
        layer: The output embedding, (V, d).
        added: A bias (V,) that the backbone adds to what the layer gives, as Marian and BART do; None: none.
        scale: By which the layer's input is multiplied, as `find_output_scale` finds it.
    """

    layer: nn.Linear
    added: Tensor | None = None
    scale: float = 1.0

    @classmethod
    def of(cls, backbone: PreTrainedModel, scale: float = 1.0) -> Self:
        """Return the map of a backbone.

        Raises:
            ValueError: If it has no plain output embedding.
        """
        added = getattr(backbone, "final_logits_bias", None)
        return cls(output_embedding(backbone), added[0] if isinstance(added, Tensor) else None, scale)

    def __call__(self, states: Tensor) -> Tensor:
        """Return the logits (..., V) of states (..., d)."""
        logits = self.layer(self.scaled(states))
        return logits if self.added is None else logits + self.added

    def scaled(self, states: Tensor) -> Tensor:
        """Return what the layer reads of states (..., d)."""
        return states if self.scale == 1 else states * self.scale

    def inside(self, compute: Callable[..., Any], *arguments: Any) -> Any:
        """Return compute(weight, bias, *arguments), run as `call_inside` runs it; the bias has what is added in it."""

        def with_bias(weight: Tensor, bias: Tensor | None, *arguments: Any) -> Any:
            if self.added is not None:
                bias = self.added if bias is None else bias + self.added
            return compute(weight, bias, *arguments)

        return call_inside(self.layer, with_bias, *arguments)

    def cross_entropy(self, states: Tensor, targets: Tensor) -> Tensor:
        """Return `token_cross_entropy` of states (..., d) and targets (...), in the shape of the targets."""

        def losses(weight: Tensor, bias: Tensor | None, states: Tensor, targets: Tensor) -> Tensor:
            return token_cross_entropy(states, weight, targets, bias)

        return self.inside(losses, self.scaled(states).flatten(0, -2), targets.flatten()).view(targets.shape)
