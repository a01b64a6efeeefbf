"""The arguments of a model's passes for rows that end one after another."""

import inspect
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import ModelOutput


class PassInputs:
    """The arguments that `generate` has prepared, for rows that end one after another.

    Args:
        model: With a source or without: the mask and positions of the text are the decoder's, or the model's.
        model_kwargs: Arguments of `forward`, among them the cache.

    Attributes:
        takes_positions: Whether `forward` takes positions of the text.
        cache_name: Of the argument and the output that is the cache.
    """

    def __init__(self, model: PreTrainedModel, model_kwargs: dict[str, Any]) -> None:
        self.given = model_kwargs
        self.has_source = bool(model.config.is_encoder_decoder)
        prefix = "decoder_" if self.has_source else ""
        self._mask, self._positions = f"{prefix}attention_mask", f"{prefix}position_ids"
        taken = inspect.signature(model.forward).parameters
        self.takes_positions = self._positions in taken
        self.cache_name = "cache_params" if "cache_params" in taken else "past_key_values"

    @property
    def cache(self) -> Any:
        """The cache that `generate` has prepared; None if there is none."""
        return self.given.get(self.cache_name)

    @property
    def mask(self) -> Tensor | None:
        """The mask of the text, (batch, time); None if nothing is padded."""
        return self.given.get(self._mask)

    @property
    def positions(self) -> Tensor | None:
        """The positions of the text, (batch, time), as `generate` has prepared them."""
        return self.given.get(self._positions)

    def last_positions(self, mask: Bool[Tensor, "batch time"]) -> Int[Tensor, "batch"]:
        """Return the position of each row's last token; a decoder counts places, and a causal model tokens."""
        if self.has_source:
            return torch.full((len(mask),), mask.shape[1] - 1, device=mask.device)
        return mask.sum(dim=1) - 1 if self.positions is None else self.positions[:, -1].expand(len(mask))

    def select(self, rows: Bool[Tensor, "batch"]) -> None:
        """Keep only the rows of the source, and of token types, where `rows` is true."""
        if (types := self.given.get("token_type_ids")) is not None:
            self.given = {**self.given, "token_type_ids": types[rows]}
        if not self.has_source:
            return
        outputs = self.given["encoder_outputs"]
        outputs: Any = outputs if isinstance(outputs, ModelOutput) else BaseModelOutput(outputs[0])
        kept = {name: value[rows] if isinstance(value, Tensor) else value for name, value in outputs.items()}
        self.given = {**self.given, "encoder_outputs": type(outputs)(**kept)}
        if isinstance(self.given.get("attention_mask"), Tensor):
            self.given["attention_mask"] = self.given["attention_mask"][rows]

    def of_pass(self, mask: Tensor | None, positions: Int[Tensor, "rows chunk"], cache: Any) -> dict[str, Any]:
        """Return the arguments of a pass with the mask and the positions of its chunk."""
        given = {**self.given, self._mask: mask, self.cache_name: cache}
        if self.takes_positions:
            given[self._positions] = positions
        if (types := given.get("token_type_ids")) is not None:  # `generate` goes on with the last one
            given["token_type_ids"] = types[:, -1:].expand(-1, positions.shape[1])
        return given


def tokens_of(ids: Tensor | None, mask: Tensor | None, num_rows: int) -> list[list[int]]:
    """Return the tokens of each row without padding; none if these are no token ids.

    Args:
        ids: What a model or its encoder has read, (batch, time).
        mask: (batch, time), 0 at padding.
        num_rows: Of the text; a multiple of the batch if several texts are written for each source.
    """
    if ids is None or ids.ndim != 2 or ids.is_floating_point():
        return [[] for _ in range(num_rows)]
    ids = ids.repeat_interleave(num_rows // len(ids), dim=0)
    kept = torch.ones_like(ids) if mask is None or mask.shape != ids.shape else mask
    return [row[keep.bool()].tolist() for row, keep in zip(ids, kept, strict=True)]
