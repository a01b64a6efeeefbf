"""The published MDLM and sentence curves on top, written out in float64 from tensors in the published layout."""

import math

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, silu

from hf_targets import MdlmForMaskedDiffusion
from hf_targets.maths.bsplines import basis_matrix, inverse_matrix

State = dict[str, Tensor]


def published_state(model: MdlmForMaskedDiffusion) -> State:
    """Return a model's weights in the published layout and in float64, with those of several curves beside them."""
    extra = {name: tensor for name, tensor in model.state_dict().items() if ".curves." in name}
    state = {**model.with_curve(None).to_published(), **extra}
    return {name.removeprefix("backbone."): tensor.double() for name, tensor in state.items()}


def condition(state: State, sigma: Tensor) -> Tensor:
    """Return c (rows, cond_dim) = SiLU(MLP(cosines and sines of sigma))."""
    angles = sigma.double()[:, None] * torch.exp(-math.log(10_000) * torch.arange(128, dtype=torch.float64) / 128)
    hidden = torch.cat([torch.cos(angles), torch.sin(angles)], dim=1)
    for layer in ("0", "2"):
        hidden = silu(linear(hidden, state[f"sigma_map.mlp.{layer}.weight"], state[f"sigma_map.mlp.{layer}.bias"]))
    return hidden


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return the layer normalisation of x, with a weight and no bias."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def rotate(x: Tensor) -> Tensor:
    """Return x (length, heads, dim), each pair of the first and the second half turned by its position's angle."""
    length, _, dim = x.shape
    turned = x.clone()
    for position in range(length):
        for i in range(dim // 2):
            angle = position / 10_000 ** (2 * i / dim)
            one, two = x[position, :, i], x[position, :, i + dim // 2]
            turned[position, :, i] = one * math.cos(angle) - two * math.sin(angle)
            turned[position, :, i + dim // 2] = two * math.cos(angle) + one * math.sin(angle)
    return turned


def block(state: State, number: int, x: Tensor, c: Tensor) -> Tensor:
    """Return what a block makes of one row x (length, d) under the condition c (cond_dim,)."""
    weights = {name.removeprefix(f"blocks.{number}."): tensor for name, tensor in state.items()}
    modulation = weights["adaLN_modulation.weight"] @ c + weights["adaLN_modulation.bias"]
    shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = modulation.split(x.shape[1])
    head_dim = 2 * len(state["rotary_emb.inv_freq"])
    qkv = (norm(x, weights["norm1.weight"]) * (1 + scale_msa) + shift_msa) @ weights["attn_qkv.weight"].T
    query, key, value = qkv.reshape(len(x), 3, -1, head_dim).unbind(1)
    scores = torch.einsum("ihd,jhd->hij", rotate(query), rotate(key)) / math.sqrt(head_dim)
    attended = torch.einsum("hij,jhd->ihd", scores.softmax(-1), value).reshape(len(x), -1)
    x = x + gate_msa * (attended @ weights["attn_out.weight"].T)
    hidden = norm(x, weights["norm2.weight"]) * (1 + scale_mlp) + shift_mlp
    hidden = gelu(linear(hidden, weights["mlp.0.weight"], weights["mlp.0.bias"]), approximate="tanh")
    return x + gate_mlp * linear(hidden, weights["mlp.2.weight"], weights["mlp.2.bias"])


def final(state: State, x: Tensor, c: Tensor) -> Tensor:
    """Return the last normalisation of one row x (length, d), modulated."""
    modulation = state["output_layer.adaLN_modulation.weight"] @ c + state["output_layer.adaLN_modulation.bias"]
    shift, scale = modulation.split(x.shape[1])
    return norm(x, state["output_layer.norm_final.weight"]) * (1 + scale) + shift


def subs(state: State, hidden: Tensor, canvas: Tensor, mask: int) -> Tensor:
    """Return log-probabilities (length, vocab): no mask, and a token that is not masked is itself."""
    logits = linear(hidden, state["output_layer.linear.weight"], state["output_layer.linear.bias"])
    logits[:, mask] += -1e6
    logits = logits - logits.logsumexp(-1, keepdim=True)
    for index, token in enumerate(canvas.tolist()):
        if token != mask:
            logits[index] = -1e6
            logits[index, token] = 0
    return logits


def logits_of_row(model: MdlmForMaskedDiffusion, canvas: Tensor, sigma: float, state: State | None = None) -> Tensor:
    """Return the log-probabilities (length, vocab) of one row without padding, plain or by its curve."""
    state, config = published_state(model) if state is None else state, model.config
    c, curve = condition(state, torch.tensor([sigma], dtype=torch.float64))[0], config.curve
    x, blocks = state["vocab_embed.embedding"][canvas], range(config.num_hidden_layers)
    if curve is None:
        for number in blocks:
            x = block(state, number, x, c)
        return subs(state, final(state, x, c), canvas, config.mask_token_id)
    first = 0 if curve.place == "input" else len(blocks) - (curve.num_curve_layers or 1)
    for number in blocks[:first]:
        x = block(state, number, x, c)
    size = (len(canvas), curve.num_control_points_for(len(canvas)), curve.degree_for(len(canvas)), curve.margin)
    start = inverse_matrix(*size, rank_deficient=curve.rank_deficient).T @ x
    results, scores = [], []
    for k in range(curve.num_curves):
        points = start if curve.num_curves == 1 else torch.cat([state["curves.tokens"][k][None], start])
        for number in blocks[first:]:
            points = block(state, number, points, c)
        points = final(state, points, c)
        if curve.num_curves > 1:
            token, points = points[0], points[1:]
            score = gelu(linear(token, state["curves.scorer.0.weight"], state["curves.scorer.0.bias"]))
            scores.append((score @ state["curves.scorer.2.weight"].T)[0])
        results.append(points)
    points = results[0]
    if scores:
        p = torch.stack(scores).softmax(0)
        mixed = sum(p[k] * results[k] for k in range(len(p)))
        points = mixed if model.training else results[int(p.argmax())]
    return subs(state, basis_matrix(*size).T @ points, canvas, config.mask_token_id)
