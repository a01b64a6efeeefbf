"""Folding of a constant modulation into the neighbouring weights: the same function with fewer products."""

import copy
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_targets.backbones.new_parts import check_no_adapters
from hf_targets.masked_diffusion.configuration import MdlmConfig
from hf_targets.masked_diffusion.layers import TimeEmbedding

Model = TypeVar("Model", bound=PreTrainedModel)


@torch.no_grad()
def fold_modulation(model: Model) -> Model:
    """Return a folded copy of an `MdlmForMaskedDiffusion` without time conditioning; the model does not change.

    With sigma = 0 everywhere, shift, scale and gate are constants of each block, and these equations are exact:

        W (w norm(x) (1 + scale) + shift) = (W diag(w (1 + scale))) norm(x) + W shift,   gate W x = (diag(gate) W) x.

    At the output, the matrix B of a curve comes between norm and W. It acts on positions and its columns sum to 1, so
    it commutes with scale and shift. The `control_points` of a folded model are those before scale and shift.

    Raises:
        ValueError: If the modulation is not constant, the model is already folded, or a layer has an adapter.
    """
    check_no_adapters(model, "fold_modulation changes the weights")
    config, backbone = cast(MdlmConfig, copy.deepcopy(model.config)), cast(Any, model.backbone)
    if config.time_conditioning or config.folded or config.backbone is not None:
        what = "one that depends on the time (time_conditioning)" if config.time_conditioning else "none left"
        raise ValueError(f"fold_modulation needs a constant modulation, and this model has {what}; use it as it is")
    config.folded = True
    state = {name: tensor.to(torch.float64, copy=True) for name, tensor in model.state_dict().items()}
    wide = {name: tensor for name, tensor in state.items() if "sigma_map" not in name and "adaLN" not in name}
    time_embedding = cast(TimeEmbedding, copy.deepcopy(backbone.sigma_map)).double()
    condition = time_embedding(torch.zeros(1, device=model.device))

    def modulation(prefix: str, parts: int) -> tuple[Tensor, ...]:
        name = f"{prefix}.adaLN_modulation"
        return nn.functional.linear(condition, state[f"{name}.weight"], state[f"{name}.bias"])[0].chunk(parts)

    def fold_input(linear: str, norm: str, shift: Tensor, scale: Tensor, *, keep_norm: bool = False) -> None:
        weight = wide[f"{linear}.weight"]
        factor = state[f"{norm}.weight"] * (1 + scale)
        wide[f"{linear}.bias"] = weight @ shift + wide.get(f"{linear}.bias", 0.0)
        wide[f"{linear}.weight"] = weight * factor
        if not keep_norm:
            del wide[f"{norm}.weight"]

    for number in range(config.num_hidden_layers):
        block = f"backbone.blocks.{number}"
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = modulation(block, 6)
        fold_input(f"{block}.attn_qkv", f"{block}.norm1", shift, scale)
        fold_input(f"{block}.mlp.0", f"{block}.norm2", mlp_shift, mlp_scale)
        wide[f"{block}.attn_out.weight"] *= gate[:, None]
        wide[f"{block}.mlp.2.weight"] *= mlp_gate[:, None]
        wide[f"{block}.mlp.2.bias"] *= mlp_gate
    shift, scale = modulation("backbone.output_layer", 2)
    if backbone.curves is not None:  # the network that weighs curves has the same input as the output matrix
        fold_input("backbone.curves.scorer.0", "backbone.output_layer.norm_final", shift, scale, keep_norm=True)
    fold_input("backbone.output_layer.linear", "backbone.output_layer.norm_final", shift, scale)
    folded = type(model)(config).to(device=model.device, dtype=model.dtype)  # pyright: ignore[reportCallIssue]
    folded.load_state_dict({name: tensor.to(model.dtype) for name, tensor in wide.items()})
    return folded.train(model.training)
