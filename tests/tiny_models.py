"""Tiny randomly initialised backbones of several families, and heads on them."""

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoConfig,
    LlamaConfig,
    OPTConfig,
    PhiConfig,
    PreTrainedModel,
    Qwen3Config,
    ReformerConfig,
)

from hf_targets import MultiTokenForCausalLM

VOCAB = 50
_SMALL = {"vocab_size": VOCAB, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
CONFIGS = {
    "gpt_neo": lambda: GPTNeoConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        max_position_embeddings=64,
        window_size=4,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0
    ),
    "llama": lambda: LlamaConfig(**_SMALL, num_key_value_heads=2, intermediate_size=64, bos_token_id=0, eos_token_id=0),
    "qwen3": lambda: Qwen3Config(
        **_SMALL,
        num_key_value_heads=2,
        intermediate_size=64,
        head_dim=8,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "opt": lambda: OPTConfig(  # projects to another width before the output embedding
        **_SMALL,
        ffn_dim=64,
        word_embed_proj_dim=16,
        max_position_embeddings=64,
        dropout=0.0,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "phi": lambda: PhiConfig(**_SMALL, intermediate_size=64, bos_token_id=0, eos_token_id=0),  # output bias
    "reformer": lambda: ReformerConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        attn_layers=["local", "lsh"],
        num_attention_heads=4,
        attention_head_size=8,
        feed_forward_size=64,
        is_decoder=True,
        axial_pos_embds=False,
        max_position_embeddings=64,
        local_attn_chunk_length=8,
        lsh_attn_chunk_length=8,
        num_buckets=2,
        hash_seed=0,
        pad_token_id=0,
        eos_token_id=0,
    ),
}
FAMILIES = tuple(CONFIGS)
CACHED_FAMILIES = tuple(name for name in FAMILIES if name != "reformer")
TARGETS = ("difference", "embedding")


def make_backbone(family: str = "gpt_neo", seed: int = 0, **changes) -> PreTrainedModel:
    """Return a backbone without dropout whose logits are far from uniform."""
    torch.manual_seed(seed)
    config = CONFIGS[family]()
    for name in ("embed_dropout", "resid_dropout", "attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    for name, value in changes.items():
        setattr(config, name, value)
    config.initializer_range = 0.2
    return AutoModelForCausalLM.from_config(config).eval()


def make_model(family: str = "gpt_neo", seed: int = 0, **config) -> MultiTokenForCausalLM:
    """Return heads on a tiny backbone."""
    return MultiTokenForCausalLM.from_base(make_backbone(family, seed), **{"ngram_size": 4, **config}).eval()


def token_ids(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return random token ids, none of them 0, the end token."""
    return torch.randint(1, VOCAB, shape, generator=torch.Generator().manual_seed(seed))
