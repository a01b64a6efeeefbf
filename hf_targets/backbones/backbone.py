"""The requirement on a wrapped model: its logits are its output matrix applied to its last hidden states."""

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.weight_access import execution_device, num_rows


def output_embedding(backbone: PreTrainedModel) -> nn.Linear:
    """Return the layer that turns hidden states into logits.

    Raises:
        ValueError: If there is none, or it is not a plain linear layer (for example with LoRA): our models share its
            rows.
    """
    layer = backbone.get_output_embeddings()
    if layer is None:
        raise ValueError(
            f"{type(backbone).__name__} has no output embedding to share; load it with AutoModelForCausalLM"
        )
    if not isinstance(layer, nn.Linear):
        raise ValueError(
            f"the output embedding must be a torch.nn.Linear, as models share its rows, got {type(layer).__name__}; "
            "leave it out of the adapter's target_modules"
        )
    return layer


@torch.no_grad()
def check_backbone(backbone: PreTrainedModel) -> None:
    """Check on a few tokens that the backbone's logits are its output embedding applied to its last hidden states.

    Raises:
        ValueError: If they are not, because of a soft cap or scale on the logits or a transform before them; or if the
            backbone has no base model.
    """
    layer = output_embedding(backbone)
    if backbone.base_model is backbone:
        raise ValueError(
            f"{type(backbone).__name__} has no base model below its output embedding; load the model with "
            "AutoModelForCausalLM"
        )
    device = execution_device(layer)
    if device.type == "meta" or layer.weight.numel() == 0:
        return  # weights are not loaded yet, or are sharded: they cannot be tried
    with without_dropout(backbone):
        ids = torch.arange(8, device=device)[None] % num_rows(layer)
        logits = []
        for run in (lambda: backbone(input_ids=ids).logits, lambda: layer(backbone.base_model(input_ids=ids)[0])):
            with torch.random.fork_rng(list(range(torch.cuda.device_count()))):
                torch.manual_seed(0)  # Reformer hashes at random
                logits.append(run().float())
    # the same product may be rounded differently: libraries choose a kernel by the memory alignment of a tensor
    rounding = max(2.0**-15, 4 * torch.finfo(layer.weight.dtype).eps) * float(logits[0].abs().max())
    if not torch.allclose(*logits, rtol=0.0, atol=rounding):
        raise ValueError(
            f"{type(backbone).__name__} does more than apply its output embedding to its last hidden states (a soft "
            f"cap, a scale, a transform): its logits differ by up to {(logits[0] - logits[1]).abs().max():.2g}. Such "
            "models are not supported, as their output matrix cannot be shared; choose another base model"
        )
