"""What a wrapped model must offer: hidden states that its output matrix turns into its logits, and nothing else."""

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.weight_access import execution_device, num_rows


def output_embedding(backbone: PreTrainedModel) -> nn.Linear:
    """Return the layer that turns hidden states into logits.

    Raises:
        ValueError: If there is none, or it is not a plain linear layer (LoRA on it, say): our models share its rows.
    """
    layer = backbone.get_output_embeddings()
    if layer is None:
        raise ValueError(
            f"{type(backbone).__name__} has no output embedding to share; load it with AutoModelForCausalLM"
        )
    if not isinstance(layer, nn.Linear):
        raise ValueError(
            f"the output embedding must be a torch.nn.Linear, whose rows are shared, got {type(layer).__name__}; "
            "leave it out of the adapter's target_modules"
        )
    return layer


@torch.no_grad()
def check_backbone(backbone: PreTrainedModel) -> None:
    """Try on a few tokens that the backbone's logits are its output embedding applied to its hidden states.

    Raises:
        ValueError: If they are not: a soft cap or a scale on the logits, a transform before them, or no base model.
    """
    layer = output_embedding(backbone)
    if backbone.base_model is backbone:
        raise ValueError(f"{type(backbone).__name__} has no base model below its output embedding")
    device = execution_device(layer)
    if device.type == "meta" or layer.weight.numel() == 0:
        return  # weights are being loaded, or sharded: nothing to try on
    with without_dropout(backbone):
        ids = torch.arange(8, device=device)[None] % num_rows(layer)
        logits = []
        for run in (lambda: backbone(input_ids=ids).logits, lambda: layer(backbone.base_model(input_ids=ids)[0])):
            with torch.random.fork_rng(list(range(torch.cuda.device_count()))):
                torch.manual_seed(0)  # Reformer hashes at random
                logits.append(run().float())
    # the same product twice may differ by rounding: libraries choose their way by where in memory a tensor lies
    rounding = max(2.0**-15, 4 * torch.finfo(layer.weight.dtype).eps) * float(logits[0].abs().max())
    if not torch.allclose(*logits, rtol=0.0, atol=rounding):
        raise ValueError(
            f"{type(backbone).__name__} does more than apply its output embedding to its last hidden states (a soft "
            f"cap, a scale, a transform): its logits differ by up to {(logits[0] - logits[1]).abs().max():.2g}. What "
            "shares its output matrix would not predict what it predicts; such models are not supported"
        )
