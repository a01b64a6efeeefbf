"""Checkpoints of the published program of DINOISER, whose layers are those of `torch.nn.Transformer`."""

import json
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hf_targets.backbones.published import check_options, num_layers, rename
from hf_targets.gaussian_diffusion.configuration import DifformerConfig

FREQUENCIES = "timeW"
"""The tensor that tells these checkpoints from others."""
EMBEDDING = "vae.embedding.weight"
_LAYER = re.compile(r"(encoder\.encoder|decoder\.trm)\.layers\.(\d+)\.(.+)[._](weight|bias)$")
_ATTENTION = {"self_attn": "self_attn", "multihead_attn": "encoder_attn"}
_NORMS = {
    "encoder": {"norm1": "self_attn_layer_norm", "norm2": "final_layer_norm"},
    "decoder": {"norm1": "self_attn_layer_norm", "norm2": "encoder_attn_layer_norm", "norm3": "final_layer_norm"},
}
_RENAMED = {
    "encoder.encoder.norm.": "encoder.layer_norm.",
    "encoder.enc_token_embed.": "encoder.embed_tokens.",
    "encoder.enc_pos_embed.": "encoder.embed_positions.",
    "decoder.pos_embedding.": "decoder.embed_positions.",
    "decoder.norm.": "decoder.embed_norm.",
    "bottleneck.time_proj.": "decoder.embed_time.",
    "bottleneck.up_sampler.": "decoder.read.",
    "bottleneck.down_sampler.": "decoder.project_out_dim.",
    "length_predictor.length_predictor.": "lengths.embed_length.",
}
"""Beginnings of the names of tensors, and of ours."""
_NOT_READ = (FREQUENCIES, "encoder.position_ids", "vae.position_ids")
_MUST_BE: dict[str, Any] = {
    "scheduler": "interchangable",
    "model_output_type": "x0",
    "self_conditioning": True,
    "partial_diffusion": False,
    "length_model_type": "classification",
    "length_predict_type": "difference",
    "diffusion_model_type": "transformer",
    "vae_type": "vae",
}
_LAYERS_MUST_BE = {"enc_prenorm": False, "dec_prenorm": False, "dec_causal": False}
_EMBEDDINGS_MUST_BE = {"normalized_embedding": True, "std": 0, "inf_num_layers": 0, "gen_num_layers": 0}


def fields_of(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of the configuration that options of the published program set.

    Raises:
        ValueError: If the model was trained with an option that ours does not have.
    """
    layers, embeddings = (json.loads(options[f"{part}_config"]) for part in ("diffusion_model", "vae"))
    for values, needed in ((options, _MUST_BE), (layers, _LAYERS_MUST_BE), (embeddings, _EMBEDDINGS_MUST_BE)):
        check_options(values, {option: (value, value) for option, value in needed.items()}, name)
    fields = {"num_attention_heads": layers["num_heads"]}
    return {**fields, "dropout": options["dropout"]} if "dropout" in options else fields


def sizes_of(found: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the fields of the configuration that follow from the tensors."""
    sizes: dict[str, Any] = {"preset": "dinoiser", "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    sizes["vocab_size"], sizes["latent_size"] = found[EMBEDDING].shape
    if "encoder.enc_token_embed.weight" in found:
        sizes["source_vocab_size"], sizes["hidden_size"] = found["encoder.enc_token_embed.weight"].shape
    if "encoder.encoder.layers.0.linear1.weight" in found:
        sizes["intermediate_size"] = len(found["encoder.encoder.layers.0.linear1.weight"])
    if "length_predictor.length_predictor.2.weight" in found:
        sizes["num_length_classes"] = len(found["length_predictor.length_predictor.2.weight"])
    sizes["num_hidden_layers"] = num_layers(found, "decoder.trm.layers.")
    positions = (f"{part}.weight" for part in ("encoder.enc_pos_embed", "decoder.pos_embedding"))
    if lengths := [len(found[key]) for key in positions if key in found]:
        sizes["max_position_embeddings"] = min(lengths)
    return {**sizes, "time_frequencies": found[FREQUENCIES].float().tolist()}


def renamed(found: Mapping[str, Tensor], config: DifformerConfig) -> dict[str, Tensor]:
    """Return tensors by our names, those of an attention apart, and at most as many positions as there are here."""
    tensors: dict[str, Tensor] = {}
    for key, tensor in found.items():
        if key in _NOT_READ:
            continue
        if key == EMBEDDING:
            tensors |= {"embed_tokens.weight": tensor, "lm_head.weight": tensor}
        elif match := _LAYER.match(key):
            tensors |= _of_layer(match[1], match[2], match[3], match[4], tensor)
        else:
            name = rename(key, _RENAMED)
            tensors[name] = tensor[: config.max_position_embeddings] if "embed_positions" in name else tensor
    return tensors


def _of_layer(stack: str, number: str, part: str, kind: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return the tensors of ours that a tensor of a layer is, such as queries, keys and values."""
    side = "encoder" if stack.startswith("encoder") else "decoder"
    begin, (name, _, rest) = f"{side}.layers.{number}", part.partition(".")
    if name in _ATTENTION:
        begin = f"{begin}.{_ATTENTION[name]}"
        if rest == "in_proj":
            names = (f"{begin}.{which}_proj.{kind}" for which in "qkv")
            return dict(zip(names, tensor.chunk(3), strict=True))
        return {f"{begin}.{rest}.{kind}": tensor}
    renamed_part = {"linear1": "fc1", "linear2": "fc2", **_NORMS[side]}.get(name, part)
    return {f"{begin}.{renamed_part}.{kind}": tensor}
