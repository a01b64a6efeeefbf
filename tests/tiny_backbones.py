"""Tiny randomly initialised backbones of several families, random token ids, and padded rows of them."""

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

VOCAB = 50
SMALL = {"vocab_size": VOCAB, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
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
    "llama": lambda: LlamaConfig(**SMALL, num_key_value_heads=2, intermediate_size=64, bos_token_id=0, eos_token_id=0),
    "qwen3": lambda: Qwen3Config(
        **SMALL,
        num_key_value_heads=2,
        intermediate_size=64,
        head_dim=8,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "opt": lambda: OPTConfig(  # projects to another width before the output embedding
        **SMALL,
        ffn_dim=64,
        word_embed_proj_dim=16,
        max_position_embeddings=64,
        dropout=0.0,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "phi": lambda: PhiConfig(**SMALL, intermediate_size=64, bos_token_id=0, eos_token_id=0),  # output bias
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


def make_backbone(family: str = "gpt_neo", seed: int = 0, **changes) -> PreTrainedModel:
    """Return a backbone without dropout whose logits are far from uniform."""
    torch.manual_seed(seed)
    config = CONFIGS[family]()
    for name in config.to_dict():
        if name.endswith(("dropout", "pdrop", "dropout_prob")):
            setattr(config, name, 0.0)
    for name, value in changes.items():
        setattr(config, name, value)
    config.initializer_range = 0.2
    return AutoModelForCausalLM.from_config(config).eval()


def token_ids(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return random token ids, none of them 0, the end token."""
    return torch.randint(1, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def left_padded(num_rows: int = 4, time: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Return prompts of different lengths, padded on the left with 0, and their mask."""
    ids = token_ids(num_rows, time)
    mask = (torch.arange(time) >= torch.arange(num_rows)[:, None] % 4).long()
    return ids * mask, mask


def pad_rows(rows: list[torch.Tensor], side: str, fill: int) -> torch.Tensor:
    """Return one-dimensional rows as one batch, padded on the left or the right."""
    width = max(map(len, rows))
    padded = torch.full((len(rows), width), fill)
    for row, values in zip(padded, rows, strict=True):
        row[slice(width - len(values), None) if side == "left" else slice(len(values))] = values
    return padded
