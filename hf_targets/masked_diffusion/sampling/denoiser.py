"""What the samplers ask of a network."""

from typing import Protocol

from jaxtyping import Bool, Float, Int
from torch import Tensor


class Denoiser(Protocol):
    """A network that predicts the clean tokens of a canvas, a text of which some tokens are masked."""

    def log_probabilities(
        self,
        canvas: Int[Tensor, "rows length"],
        where: Bool[Tensor, "rows length"],
        *,
        attention_mask: Int[Tensor, "rows length"] | None,
        timesteps: Float[Tensor, "rows"],
    ) -> Float[Tensor, "places vocab"]:
        """Return log p(clean token) at the places where `where` is true, row by row; there may be none."""
        ...
