"""The requirement on a wrapped model: its logits are its output matrix applied to its last hidden states."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.weight_access import execution_device, num_rows


def output_embedding(backbone: PreTrainedModel) -> nn.Linear:
    """Return the layer that turns hidden states into logits.

    Raises:
        ValueError: If there is none, or it is not a plain linear layer (for example with LoRA, or quantized): our
            models share its rows.
    """
    layer = backbone.get_output_embeddings()
    if layer is None:
        auto_class = "AutoModelForSeq2SeqLM" if backbone.config.is_encoder_decoder else "AutoModelForCausalLM"
        raise ValueError(f"{type(backbone).__name__} has no output embedding to share; load it with {auto_class}")
    if not isinstance(layer, nn.Linear):
        is_adapted = hasattr(layer, "base_layer") or hasattr(layer, "original_module")
        way_out = "leave it as it is, in float or bfloat16, when you quantize or replace layers"
        if is_adapted:
            way_out = "leave it out of the adapter's target_modules and modules_to_save"
        raise ValueError(
            f"the output embedding must be a torch.nn.Linear, as models share its rows, got {type(layer).__name__}; "
            f"{way_out}"
        )
    return layer


def check_backbone(backbone: PreTrainedModel) -> None:
    """Check on a few tokens that a causal model's logits are its output embedding applied to its last hidden states.

    Raises:
        ValueError: If they are not, because of a soft cap or scale on the logits or a transform before them; or if the
            backbone has no base model.
    """
    if find_output_scale(backbone, read_causal, "input_ids") not in (None, 1.0):
        raise ValueError(
            f"{type(backbone).__name__} scales its logits, which phrases do not support; choose another base model"
        )


def read_causal(backbone: PreTrainedModel, ids: Tensor) -> Tensor:
    """Return the last hidden states (batch, time, d) of a causal model for token ids.

    Raises:
        ValueError: If the backbone has no base model.
    """
    if backbone.base_model is backbone:
        raise ValueError(
            f"{type(backbone).__name__} has no base model below its output embedding; load the model with "
            "AutoModelForCausalLM"
        )
    return backbone.base_model(input_ids=ids)[0]


@torch.no_grad()
def find_output_scale(
    backbone: PreTrainedModel, read: Callable[[PreTrainedModel, Tensor], Tensor], *names: str
) -> float | None:
    """Return the factor between a backbone's last hidden states and what its output embedding reads, tried on tokens.

    It is 1 for most, and another for T5, Cohere, Granite and others that have a scale in their configuration. A bias
    `final_logits_bias`, as Marian and BART have it, is added to the logits.

    Args:
        read: Returns the last hidden states of token ids (1, time).
        names: The arguments of the backbone that get these ids.
    Returns: None if the weights are not loaded yet, or are sharded: they cannot be tried.
    Raises:
        ValueError: If the logits are anything else: a soft cap, a transform; or not finite; or if the output embedding
            cannot be used.
    """
    layer = output_embedding(backbone)
    device = execution_device(layer)
    if device.type == "meta" or layer.weight.numel() == 0:
        return None
    multiple = getattr(backbone.config, "text_multiple", 1)  # of a model of ours that reads whole segments
    ids = torch.arange(-(-8 // multiple) * multiple, device=device)[None] % num_rows(layer)
    results = []
    with without_dropout(backbone):
        for run in (
            lambda: read(backbone, ids),
            lambda: backbone(**dict.fromkeys(names, ids), return_dict=True).logits,
        ):
            results.append(run())
    hidden, logits = results
    added: Any = getattr(backbone, "final_logits_bias", 0.0)
    scales = _scales(backbone.config)
    products = [(layer(scale * hidden) + added).float() for scale in scales]
    errors = [float((logits.float() - product).abs().max()) for product in products]
    error, scale = min(zip(errors, scales, strict=True), key=lambda pair: pair[0])
    # the same product may be rounded differently: libraries choose a kernel by the memory alignment of a tensor
    rounding = max(2.0**-15, 4 * torch.finfo(layer.weight.dtype).eps) * float(logits.abs().max())
    if not logits.isfinite().all():
        raise ValueError(
            f"{type(backbone).__name__} gives logits that are not finite, so that it cannot be tried whether its "
            "output matrix can be shared; look for NaN in its weights, or load them in another type"
        )
    if not error <= rounding:
        raise ValueError(
            f"{type(backbone).__name__} does more than apply its output embedding to its last hidden states, times a "
            f"scale (a soft cap, a transform): its logits differ by up to {error:.2g}. Such models are not supported, "
            "as their output matrix cannot be shared; choose another base model"
        )
    return scale


def _scales(config: Any) -> list[float]:
    """Return 1 and the scales that a configuration may mean."""
    config = config.get_text_config()
    given = [getattr(config, name, None) for name in ("logit_scale", "logits_scaling")]
    known = [value for value in given if isinstance(value, int | float) and value]
    width = getattr(config, "d_model", None)
    return [1.0, *known, *(1 / value for value in known), *([width**-0.5] if isinstance(width, int) else [])]
