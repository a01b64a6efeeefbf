"""A fingerprint of a model: a few values of each weight, which differ in another model or after training."""

import json
from dataclasses import dataclass
from typing import Self

import torch
from torch import nn
from transformers import PreTrainedModel

_NUM_VALUES = 8
_OTHER_VALUES = "has other values"
_FLOATS = ("float64", "float32", "float16", "bfloat16")
_ABSOLUTE = 2.0**-24  # the smallest positive number of float16


@dataclass(frozen=True)
class WeightSample:
    """A few values of one weight, with its type and shape.

    Attributes:
        dtype: The type that the weight was loaded with, by its name in torch.
        shape: Its shape; None if it is not known, for a weight that is quantised or that ZeRO-3 has sharded.
        values: Its first value, its last, and six at even steps between them; None if they are not known, for a weight
            that is quantised, sharded or offloaded.
    """

    dtype: str
    shape: tuple[int, ...] | None
    values: tuple[float, ...] | None

    def __post_init__(self) -> None:
        if self.values is not None and (len(self.values) != _NUM_VALUES or self.dtype not in _FLOATS):
            raise ValueError(f"a sample has {_NUM_VALUES} floats, got {len(self.values)} of {self.dtype}")

    @classmethod
    def of(cls, weight: nn.Parameter) -> Self:
        """Return the sample of a weight."""
        dtype, count = str(weight.dtype).removeprefix("torch."), weight.numel()
        if dtype not in _FLOATS or not count:
            return cls(dtype, None, None)
        if weight.device.type == "meta" or hasattr(weight, "to_local"):  # a DTensor
            return cls(dtype, tuple(weight.shape), None)
        positions = [step * (count - 1) // (_NUM_VALUES - 1) for step in range(_NUM_VALUES)]
        return cls(dtype, tuple(weight.shape), tuple(weight.detach().flatten()[positions].cpu().double().tolist()))

    def difference(self, other: Self) -> str | None:
        """Describe how another sample differs from this one; None if both may be of the same weight."""
        if self.shape is not None and other.shape is not None and self.shape != other.shape:
            return f"is {other.shape}, not {self.shape}"
        if self.values is None or other.values is None:
            return None
        # a checkpoint loaded in two types differs by rounding
        types = {self.dtype, other.dtype}
        rounding = 0.0 if len(types) == 1 else max(torch.finfo(getattr(torch, dtype)).eps for dtype in types)
        pair = (torch.tensor(sample.values, dtype=torch.float64) for sample in (self, other))
        same = torch.allclose(*pair, rtol=rounding, atol=_ABSOLUTE if rounding else 0.0, equal_nan=True)
        return None if same else _OTHER_VALUES


@dataclass(frozen=True)
class Fingerprint:
    """Samples of a model's weights: their names, shapes, and 8 values of each.

    The fingerprint of GPT-2 takes 9 ms and 22 KB. It does not depend on the device, nor on the files that the model was
    loaded from; another type changes it only by rounding. Weights that are quantised, sharded over processes or
    offloaded are compared by name, and by shape if it is known. Training changes nearly every value of a weight, so
    that 8 values are enough to detect it.

    Attributes:
        weights: The samples by the names of the weights.
        quantized: Whether the model is quantised, which replaces some weights by others.
    """

    weights: dict[str, WeightSample]
    quantized: bool = False

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self:
        """Return the fingerprint of a model."""
        weights = {name: WeightSample.of(weight) for name, weight in model.named_parameters()}
        return cls(weights, hasattr(model.config, "quantization_config"))

    def differences(self, other: Self) -> list[str]:
        """Describe how another fingerprint differs: missing weights, then new ones, other shapes, other values."""
        ours, theirs = self.weights, other.weights
        found = {name: ours[name].difference(theirs[name]) for name in ours if name in theirs}
        changed = [f"{name} {difference}" for name, difference in found.items() if difference is not None]
        changed.sort(key=lambda line: (line.endswith(_OTHER_VALUES), line))
        if self.quantized or other.quantized:
            return changed
        missing = [f"{name} is missing" for name in sorted(ours.keys() - theirs.keys())]
        return [*missing, *(f"{name} is new" for name in sorted(theirs.keys() - ours.keys())), *changed]

    def to_json(self) -> str:
        """Return the fingerprint as JSON."""
        weights = {name: [sample.dtype, sample.shape, sample.values] for name, sample in self.weights.items()}
        return json.dumps({"quantized": self.quantized, "weights": weights})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the fingerprint that `to_json` wrote.

        Raises:
            ValueError: If `text` is not the JSON of a fingerprint.
        """
        try:
            content = json.loads(text)
            weights = {name: _sample(*fields) for name, fields in content["weights"].items()}
            return cls(weights, bool(content["quantized"]))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"not a fingerprint of weights ({type(error).__name__}: {error})") from error


def _sample(dtype: str, shape: list[int] | None, values: list[float] | None) -> WeightSample:
    sizes = None if shape is None else tuple(int(size) for size in shape)
    return WeightSample(dtype, sizes, None if values is None else tuple(float(value) for value in values))
