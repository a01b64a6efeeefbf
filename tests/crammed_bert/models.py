"""Tiny CrammedBERTs, and the arithmetic of the published program written down once more, plainly and in float64."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hf_targets import CrammedBertConfig, CrammedBertForMaskedLM, CrammedBertForSequenceClassification
from tests.tiny_backbones import VOCAB

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 32, "classifier_size": 24,
}  # fmt: skip
NO_DROPOUT: dict[str, Any] = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": 0.0,
}


def make_crammed_bert(seed: int = 0, classifier: bool = False, **fields: Any) -> Any:
    """Return a CrammedBERT in evaluation mode, with all parameters away from their first values."""
    kind = CrammedBertForSequenceClassification if classifier else CrammedBertForMaskedLM
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = kind(CrammedBertConfig(**{**SIZES, **NO_DROPOUT, **fields})).eval()
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def options(**changes: Any) -> dict[str, Any]:
    """Return the config.json that the published program writes, of the sizes above."""
    arch: dict[str, Any] = {
        "architectures": ["ScriptableCrammedBERT"],
        "num_transformer_layers": 2,
        "hidden_size": 32,
        "intermed_size": 64,
        "hidden_dropout_prob": 0.0,
        "norm": "LayerNorm",
        "norm_eps": 1e-12,
        "norm_scheme": "pre",
        "nonlin": "GELUglu",
        "tie_weights": True,
        "decoder_bias": False,
        "embedding": {
            "vocab_size": VOCAB, "pos_embedding": "scaled-sinusoidal", "dropout_prob": 0.0, "pad_token_id": 0,
            "max_seq_length": 32, "embedding_dim": 32, "normalization": True,
        },
        "attention": {
            "type": "self-attention", "causal_attention": False, "num_attention_heads": 4, "dropout_prob": 0.0,
            "skip_output_projection": False, "qkv_bias": False, "rotary_embedding": False,
            "sequence_op": "torch-softmax",
        },
        "init": {"type": "normal", "std": 0.02},
        "ffn_layer_frequency": 1,
        "skip_head_transform": True,
        "use_bias": False,
        "final_norm": True,
        "classification_head": {
            "pooler": "avg", "include_ff_layer": True, "head_dim": 24, "nonlin": "Tanh", "classifier_dropout": 0.0,
        },
    }  # fmt: skip
    return {"model_type": "crammedBERT", "arch": {**arch, **changes}}


def published_tensors(seed: int = 0, *, labels: int | None = None) -> dict[str, Tensor]:
    """Return random tensors with the names and shapes of the published program, with those of a classifier or not."""
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {"encoder.embedding.word_embedding.weight": (VOCAB, 32)}
    shapes["encoder.embedding.pos_embedding.scale_factor"] = (1,)
    norms = ["encoder.embedding.norm", "encoder.final_norm"]
    for n in range(2):
        layer = f"encoder.layers.{n}"
        norms += [f"{layer}.norm1", f"{layer}.norm2"]
        shapes[f"{layer}.attn.self_attention.query_key_value.weight"] = (96, 32)
        shapes[f"{layer}.attn.dense.weight"] = (32, 32)
        shapes[f"{layer}.ffn.dense_in.weight"] = (64, 32)
        shapes[f"{layer}.ffn.dense_out.weight"] = (32, 32)
    for norm in norms:
        shapes[f"{norm}.weight"] = shapes[f"{norm}.bias"] = (32,)
    if labels is not None:
        shapes |= {"pooler.dense.weight": (24, 32), "pooler.dense.bias": (24,)}
        shapes |= {"head.weight": (labels, 24), "head.bias": (labels,)}
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    for n in range(2):
        tensors[f"encoder.layers.{n}.attn.self_attention.norm_factor"] = torch.tensor(8.0).rsqrt()
    if labels is None:
        tensors["decoder.weight"] = tensors["encoder.embedding.word_embedding.weight"].clone()
    return tensors


def published_states(tensors: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Return the last hidden states (batch, time, 32) of the published arithmetic, in float64."""
    weight = {name: tensor.double() for name, tensor in tensors.items()}

    def norm(states: Tensor, name: str) -> Tensor:
        return F.layer_norm(states, (32,), weight[f"{name}.weight"], weight[f"{name}.bias"], 1e-12)

    batch, time = ids.shape
    table = torch.zeros(time, 32, dtype=torch.float64)
    for position in range(time):
        for i in range(16):
            angle = position * math.exp(-2 * i * math.log(10000.0) / 32)
            table[position, 2 * i], table[position, 2 * i + 1] = math.sin(angle), math.cos(angle)
    states = weight["encoder.embedding.word_embedding.weight"][ids]
    states = norm(states + weight["encoder.embedding.pos_embedding.scale_factor"] * table, "encoder.embedding.norm")
    for n in range(2):
        layer = f"encoder.layers.{n}"
        mixed = norm(states, f"{layer}.norm1") @ weight[f"{layer}.attn.self_attention.query_key_value.weight"].T
        read = torch.empty(batch, time, 32, dtype=torch.float64)
        for head, of_head in enumerate(mixed.view(batch, time, 4, 24).unbind(2)):
            query, key, value = of_head.split(8, dim=-1)
            read[..., 8 * head : 8 * head + 8] = (query @ key.mT / 8**0.5).softmax(-1) @ value
        states = states + read @ weight[f"{layer}.attn.dense.weight"].T
        value, gate = (norm(states, f"{layer}.norm2") @ weight[f"{layer}.ffn.dense_in.weight"].T).chunk(2, dim=-1)
        states = states + (F.gelu(gate) * value) @ weight[f"{layer}.ffn.dense_out.weight"].T
    return norm(states, "encoder.final_norm")
