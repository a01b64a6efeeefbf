"""The output matrix of a backbone: it must give the logits of its last hidden states, but for a scale and a cap."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.weight_access import call_inside, execution_device, num_rows, trains_rows
from hf_targets.maths.losses import soft_capped, token_cross_entropy


def output_embedding(backbone: PreTrainedModel) -> nn.Linear:
    """Return the layer that turns hidden states into logits.

    Raises:
        ValueError: If there is none, or it is not a linear layer with a matrix of floats (for example with LoRA, or
            packed by bitsandbytes): our models share its rows. One that peft trains whole, or some rows of, gives its
            rows as they are now.
    """
    layer: Any = backbone.get_output_embeddings()
    if layer is None:
        raise ValueError(
            f"{type(backbone).__name__} has no output embedding to share; load it with AutoModelForCausalLM, "
            "AutoModelForSeq2SeqLM or AutoModelForMaskedLM"
        )
    inside = layer.base_layer if trains_rows(layer) else getattr(layer, "original_module", layer)  # peft's wrappers
    if not isinstance(inside, nn.Linear) or not inside.weight.is_floating_point():
        kind = f"{type(layer).__module__}.{type(layer).__qualname__}"  # peft's LoRA layer is a "Linear" too
        raise ValueError(
            f"the output embedding must be a torch.nn.Linear, as models share its rows, got {kind}; "
            "leave it out of quantization and of an adapter's target_modules"
        )
    return layer


def read_causal(backbone: PreTrainedModel, ids: Tensor) -> Tensor:
    """Return the last hidden states (batch, time, d) of a causal model for token ids.

    Raises:
        ValueError: If the backbone has no base model.
    """
    if backbone.base_model is backbone:
        raise ValueError(
            f"{type(backbone).__name__} has no base model below its output embedding; load one with "
            "AutoModelForCausalLM, or choose another architecture"
        )
    return backbone.base_model(input_ids=ids)[0]


@torch.no_grad()
def find_output_scale(
    backbone: PreTrainedModel, read: Callable[[PreTrainedModel, Tensor], Tensor], *names: str, **others: Any
) -> float | None:
    """Return the factor between a backbone's last hidden states and what its output embedding reads, tried on tokens.

    It is 1 for most, and another for T5, Cohere, Granite and others that have a scale in their configuration. A bias
    `final_logits_bias`, as Marian and BART have it, is added to the logits. A soft cap is `soft_cap_of` the backbone.

    Args:
        read: Returns the last hidden states of token ids (1, time).
        names: The arguments of the backbone that get these ids.
        others: Further arguments of the backbone.
    Returns: None if the weights are not loaded yet, or are sharded: they cannot be tried.
    Raises:
        ValueError: If the backbone reads no token ids, or its logits are anything else, or not finite.
    """
    layer = output_embedding(backbone)
    if names[0] not in inspect.signature(backbone.forward).parameters:
        raise ValueError(
            f"{type(backbone).__name__} reads {backbone.main_input_name} and no token ids; choose a base model of text"
        )
    device = execution_device(layer)
    if device.type == "meta" or layer.weight.numel() == 0:
        return None
    multiple = getattr(backbone.config, "text_multiple", 1)  # of a model of ours that reads whole segments
    ids = torch.arange(-(-8 // multiple) * multiple, device=device)[None] % num_rows(layer)
    with without_dropout(backbone):
        hidden = read(backbone, ids)
        logits = backbone(**dict.fromkeys(names, ids), **others, return_dict=True).logits
    if hidden.shape[-1] != layer.weight.shape[1]:
        raise ValueError(
            f"{type(backbone).__name__} has hidden states of {hidden.shape[-1]} numbers and an output embedding of "
            f"{layer.weight.shape[1]}, with a transform between them; choose another base model"
        )
    if not logits.isfinite().all():
        raise ValueError(
            f"{type(backbone).__name__} gives logits that are not finite: its output matrix cannot be tried; look for "
            "NaN in its weights, or load them in another type"
        )
    added: Any = getattr(backbone, "final_logits_bias", 0.0)
    scales, cap = _scales(backbone.config), soft_cap_of(backbone)
    products = [soft_capped(layer(scale * hidden) + added, cap).float() for scale in scales]
    errors = [float((logits.float() - product).abs().max()) for product in products]
    error, scale = min(zip(errors, scales, strict=True), key=lambda pair: pair[0])
    if not error <= rounding_of(layer, logits):
        raise ValueError(
            f"{type(backbone).__name__} does more than apply its output embedding to its last hidden states, times a "
            f"scale and with a cap (a transform, for one), which the losses of new parts do not compute: its logits "
            f"differ by up to {error:.2g}; choose another base model, or draft without heads (`hf_targets.draft`)"
        )
    return scale


def soft_cap_of(backbone: PreTrainedModel) -> float | None:
    """Return the bound of a backbone's logits, as `soft_capped` takes it; None: it does not cap them."""
    config = backbone.config.get_text_config()
    caps = (getattr(config, name, None) for name in ("final_logit_softcapping", "logits_soft_cap"))
    return next((cap for cap in caps if cap is not None), None)


def check_plain_output(backbone: PreTrainedModel) -> None:
    """Raise a ValueError if a causal model's logits are not its output embedding applied to its last hidden states."""
    scale, cap = find_output_scale(backbone, read_causal, "input_ids"), soft_cap_of(backbone)
    if scale not in (None, 1.0) or cap is not None:
        does = "scales its logits" if cap is None else f"caps its logits at {cap}"
        raise ValueError(
            f"{type(backbone).__name__} {does}, which the scores of phrases do not compute; choose another base model"
        )


def rounding_of(layer: nn.Linear, logits: Tensor) -> float:
    """Return by how much two computations of the same logits may differ: kernels depend on a tensor's alignment."""
    return max(2.0**-15, 4 * torch.finfo(layer.weight.dtype).eps) * float(logits.abs().max())


def _scales(config: Any) -> list[float]:
    """Return 1 and the scales that a configuration may mean."""
    config = config.get_text_config()
    given = [getattr(config, name, None) for name in ("logit_scale", "logits_scaling")]
    known = [value for value in given if isinstance(value, int | float) and value]
    width = getattr(config, "d_model", None)
    return [1.0, *known, *(1 / value for value in known), *([width**-0.5] if isinstance(width, int) else [])]


@dataclass(frozen=True)
class OutputMap:
    """Turns last hidden states, or predicted embeddings, into logits.

    Attributes:
        layer: The output embedding, (V, d).
        added: A bias (V,) that the backbone adds to what the layer gives, as Marian and BART do; None: none.
        scale: By which the layer's input is multiplied, as `find_output_scale` finds it.
        cap: Of the logits, as `soft_capped` bounds them; None: none.
    """

    layer: nn.Linear
    added: Tensor | None = None
    scale: float = 1.0
    cap: float | None = None

    @classmethod
    def of(cls, backbone: PreTrainedModel, scale: float = 1.0) -> Self:
        """Return the map of a backbone; raise ValueError if it has no plain output embedding."""
        added = getattr(backbone, "final_logits_bias", None)
        added = added[0] if isinstance(added, Tensor) else None
        return cls(output_embedding(backbone), added, scale, soft_cap_of(backbone))

    def __call__(self, states: Tensor) -> Tensor:
        """Return the logits (..., V) of states (..., d)."""
        logits = self.layer(self.scaled(states))
        return soft_capped(logits if self.added is None else logits + self.added, self.cap)

    def scaled(self, states: Tensor) -> Tensor:
        """Return what the layer reads of states (..., d)."""
        return states if self.scale == 1 else states * self.scale

    def inside(self, compute: Callable[..., Any], *arguments: Any) -> Any:
        """Return compute(weight, bias, *arguments), run as `call_inside` runs it; the bias has what is added in it.

        `compute` is to apply the cap.
        """

        def with_bias(weight: Tensor, bias: Tensor | None, *arguments: Any) -> Any:
            if self.added is not None:
                bias = self.added if bias is None else bias + self.added
            return compute(weight, bias, *arguments)

        return call_inside(self.layer, with_bias, *arguments)

    def cross_entropy(self, states: Tensor, targets: Tensor) -> Tensor:
        """Return `token_cross_entropy` of states (..., d) and targets (...), in the shape of the targets."""

        def losses(weight: Tensor, bias: Tensor | None, states: Tensor, targets: Tensor) -> Tensor:
            return token_cross_entropy(states, weight, targets, bias, cap=self.cap)

        return self.inside(losses, self.scaled(states).flatten(0, -2), targets.flatten()).view(targets.shape)
