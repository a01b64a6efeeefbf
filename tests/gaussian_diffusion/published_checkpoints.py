"""Checkpoints as the published program of Difformer writes them, and what that program computes with them."""

import enum
import math
from argparse import Namespace

import torch
from torch.nn import functional as F

HEADS, SIZE, LATENT, FEED_FORWARD, LAYERS, POSITIONS, WORDS = 2, 16, 8, 24, 2, 30, 20


class EmbedNormPosition(enum.Enum):
    """An object of the program's own among its options."""

    AFTER_PROJ = 3


def published_options(**changed) -> Namespace:
    """Return options as the checkpoint for IWSLT14 has them, at a small size."""
    options = {
        "arch": "difformer_iwslt_de_en",
        "model_dim": SIZE,
        "latent_dim": LATENT,
        "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS,
        "share_all_embeddings": True,
        "encoder_learned_pos": True,
        "decoder_learned_pos": True,
        "embed_norm": True,
        "embed_norm_affine": True,
        "embed_norm_position": EmbedNormPosition.AFTER_PROJ,
        "self_cond": True,
        "pred_length_offset": True,
        "rescale_timesteps": True,
        "noise_schedule": "sqrt",
        "diffusion_steps": 2000,
        "rescaling_factor": 4.0,
        "dropout": 0.3,
        "label_smoothing": 0.1,
        "length_loss_factor": 0.1,
        "activation_fn": "relu",
    }
    return Namespace(**{**options, **changed})


def published_tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    """Return random tensors by the program's names."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return 0.3 * torch.randn(*shape, generator=generator)

    words = draw(WORDS, LATENT)
    words[1] = 0
    tensors = {f"{part}.embed_tokens.weight": words for part in ("encoder", "decoder")}
    tensors |= {"decoder.output_projection.weight": words, "decoder.embed_length.weight": draw(256, SIZE)}
    tensors |= {f"{part}.version": torch.tensor([3.0]) for part in ("encoder", "decoder")}
    for name, out, size in (
        ("decoder.embed_time.0", 4 * SIZE, SIZE),
        ("decoder.embed_time.2", SIZE, 4 * SIZE),
        ("decoder.self_cond_proj.0", SIZE, 2 * SIZE),
        ("decoder.self_cond_proj.2", SIZE, SIZE),
    ):
        tensors |= {f"{name}.weight": draw(out, size), f"{name}.bias": draw(out)}
    tensors |= {"decoder.embed_norm.weight": 1 + draw(SIZE), "decoder.embed_norm.bias": draw(SIZE)}
    tensors["decoder.project_out_dim.weight"] = draw(LATENT, SIZE)
    for part in ("encoder", "decoder"):
        tensors[f"{part}.project_in_dim.weight"] = draw(SIZE, LATENT)
        tensors[f"{part}.embed_positions.weight"] = draw(POSITIONS + 2, SIZE)
        for layer in range(LAYERS):
            begin = f"{part}.layers.{layer}"
            for attention in ("self_attn", "encoder_attn")[: 1 + (part == "decoder")]:
                for matrix in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    tensors[f"{begin}.{attention}.{matrix}.weight"] = draw(SIZE, SIZE)
                    tensors[f"{begin}.{attention}.{matrix}.bias"] = draw(SIZE)
                tensors |= _norm(f"{begin}.{attention}_layer_norm", draw)
            tensors |= {f"{begin}.fc1.weight": draw(FEED_FORWARD, SIZE), f"{begin}.fc1.bias": draw(FEED_FORWARD)}
            tensors |= {f"{begin}.fc2.weight": draw(SIZE, FEED_FORWARD), f"{begin}.fc2.bias": draw(SIZE)}
            tensors |= _norm(f"{begin}.final_layer_norm", draw)
    return tensors


def published_prediction(tensors, source, state, previous, step) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the program computes for one source without padding: the embeddings, and logits of the length."""
    tensors = {name: tensor.double() for name, tensor in tensors.items()}

    def linear(name, rows):
        return F.linear(rows, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    def norm(name, rows):
        return F.layer_norm(rows, (SIZE,), tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    def attend(name, rows, others):
        heads = []
        size = SIZE // HEADS
        q, k, v = (linear(f"{name}.{m}_proj", x) for m, x in (("q", rows), ("k", others), ("v", others)))
        for head in range(HEADS):
            own = slice(head * size, (head + 1) * size)
            heads.append((q[:, own] @ k[:, own].T / math.sqrt(size)).softmax(-1) @ v[:, own])
        return linear(f"{name}.out_proj", torch.cat(heads, dim=-1))

    def layer(name, rows, others=None):
        rows = norm(f"{name}.self_attn_layer_norm", rows + attend(f"{name}.self_attn", rows, rows))
        if others is not None:
            rows = norm(f"{name}.encoder_attn_layer_norm", rows + attend(f"{name}.encoder_attn", rows, others))
        return norm(f"{name}.final_layer_norm", rows + linear(f"{name}.fc2", linear(f"{name}.fc1", rows).relu()))

    def positions(part, count):
        return tensors[f"{part}.embed_positions.weight"][2 : 2 + count]  # after the padding id 1

    read = linear("encoder.project_in_dim", math.sqrt(LATENT) * tensors["encoder.embed_tokens.weight"][source])
    read = read + positions("encoder", len(source))
    for number in range(LAYERS):
        read = layer(f"encoder.layers.{number}", read)
    length = F.linear(read.mean(dim=0), tensors["decoder.embed_length.weight"])
    both = torch.cat([linear("decoder.project_in_dim", rows) for rows in (state, previous)], dim=-1)
    hidden = linear("decoder.self_cond_proj.2", linear("decoder.self_cond_proj.0", both).relu())
    waves = torch.exp(-math.log(10000) * torch.arange(SIZE // 2, dtype=torch.float64) / (SIZE // 2))
    angles = step * 0.5 * waves  # 1000 over 2000 steps
    time = torch.cat([angles.cos(), angles.sin()])
    hidden = hidden + linear("decoder.embed_time.2", linear("decoder.embed_time.0", time).relu())
    hidden = norm("decoder.embed_norm", hidden + positions("decoder", len(state)))
    for number in range(LAYERS):
        hidden = layer(f"decoder.layers.{number}", hidden, read)
    return linear("decoder.project_out_dim", hidden), length


def _norm(name, draw) -> dict[str, torch.Tensor]:
    return {f"{name}.weight": 1 + draw(SIZE), f"{name}.bias": draw(SIZE)}
