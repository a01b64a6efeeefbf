"""The arguments of a pass over drafts: those of the text, and in an encoder-decoder model those of its source."""

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor


class PassInputs:
    """The arguments that `generate` has prepared, for rows that end one after another.

    Args:
        model_kwargs: Arguments of `forward`, among them the cache.
        is_encoder_decoder: Whether mask and positions of the text are the decoder's, beside a source.
    """

    def __init__(self, model_kwargs: dict[str, Any], *, is_encoder_decoder: bool) -> None:
        self.given = model_kwargs
        self._has_source = is_encoder_decoder
        prefix = "decoder_" if is_encoder_decoder else ""
        self._mask, self._positions = f"{prefix}attention_mask", f"{prefix}position_ids"

    @property
    def mask(self) -> Tensor | None:
        """The mask of the text, (batch, time); None if nothing is padded."""
        return self.given.get(self._mask)

    def last_positions(self, mask: Bool[Tensor, "batch time"]) -> Int[Tensor, "batch"]:
        """Return the position of each row's last token; a decoder counts places, and a causal model tokens."""
        if self._has_source:
            return torch.full((len(mask),), mask.shape[1] - 1, device=mask.device)
        positions = self.given.get(self._positions)
        return mask.sum(dim=1) - 1 if positions is None else positions[:, -1].expand(len(mask))

    def select(self, rows: Bool[Tensor, "batch"]) -> None:
        """Keep only the rows of the source where `rows` is true."""
        if not self._has_source or rows.all():
            return
        outputs = self.given["encoder_outputs"]
        kept = {name: value[rows] if isinstance(value, Tensor) else value for name, value in outputs.items()}
        self.given = {**self.given, "encoder_outputs": type(outputs)(**kept)}
        if isinstance(self.given.get("attention_mask"), Tensor):
            self.given["attention_mask"] = self.given["attention_mask"][rows]

    def of_pass(self, mask: Tensor | None, positions: Int[Tensor, "rows chunk"], **others: Any) -> dict[str, Any]:
        """Return the arguments of a pass with the mask and the positions of its chunk."""
        return {**self.given, self._mask: mask, self._positions: positions, **others}


def sources_of(ids: Tensor | None, mask: Tensor | None) -> list[Int[Tensor, "1 _"]] | None:
    """Return the tokens of each row's source without padding; None if it has no token ids.

    Args:
        ids: What the encoder has read, (batch, time).
        mask: (batch, time), 0 at padding.
    """
    if ids is None or ids.ndim != 2 or ids.is_floating_point():
        return None
    kept = torch.ones_like(ids) if mask is None else mask
    return [row[keep.bool()][None] for row, keep in zip(ids, kept, strict=True)]
