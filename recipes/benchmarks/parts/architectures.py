"""Tiny models of many architectures of Transformers, with random weights, and larger ones that keep a state."""

from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
    PreTrainedModel,
    set_seed,
)

WINDOW = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
STATE = {"mamba_n_heads": 4, "mamba_n_groups": 1, "mamba_d_state": 8}
DELTA = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
BLOCKS = {"time_step_min": 1e-9}  # a longer least step holds only in passes of several tokens, in Transformers
STACKS = {
    "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "init_std": 0.2, "decoder_start_token_id": 3,
}  # fmt: skip
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "gpt2": {}, "gpt_neox": {}, "opt": {}, "phi": {}, "bloom": {}, "llama": {}, "qwen2": {}, "olmo2": {}, "granite": {},
    "cohere": {}, "starcoder2": {}, "stablelm": {}, "qwen3": {"head_dim": 8}, "gemma": {"head_dim": 8},
    "mistral": {"sliding_window": 8},
    "qwen3_moe": {**EXPERTS, "head_dim": 8},
    "gemma2": {**WINDOW, "head_dim": 8},
    "gemma3_text": {**WINDOW, "head_dim": 8},
    "gemma4_text": {
        **WINDOW, "head_dim": 8, "global_head_dim": 16, "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 64,
    },
    "gpt_oss": {**WINDOW, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1},
    "mamba2": {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1},
    "bamba": {**STATE, "mamba_d_head": 16, "attn_layer_indices": [1]},
    "falcon_h1": {**STATE, "mamba_d_head": 16, "mamba_d_ssm": 64, "head_dim": 8},
    "zamba2": {
        **BLOCKS, "mamba_d_state": 8, "n_mamba_heads": 4, "mamba_ngroups": 1, "adapter_rank": 4, "num_mem_blocks": 1,
        "layers_block_type": ["mamba", "hybrid"],
    },
    "nemotron_h": {
        **BLOCKS, "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1, "ssm_state_size": 8, "head_dim": 8,
        "layers_block_type": ["mamba", "attention"],
    },
    "qwen3_next": {**DELTA, **EXPERTS, "head_dim": 8, "shared_expert_intermediate_size": 32},
    "qwen3_5_text": {**DELTA, "head_dim": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "marian": {**STACKS, "decoder_vocab_size": 64},
    "bart": {**STACKS, "forced_bos_token_id": None, "forced_eos_token_id": None},
    "t5": {"num_decoder_layers": 2, "d_kv": 8, "d_ff": 64, "initializer_factor": 1.5, "decoder_start_token_id": 3},
    "whisper": {
        **STACKS, "num_mel_bins": 8, "max_source_positions": 20, "suppress_tokens": None, "begin_suppress_tokens": None,
    },
}  # fmt: skip
WIDE = {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "intermediate_size": 1024}
LARGE: dict[str, dict[str, Any]] = {
    "mamba2": {**WIDE, "num_heads": 16, "head_dim": 64, "state_size": 64, "chunk_size": 16},
    "falcon_h1": {
        **WIDE, "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_ssm": 512, "mamba_d_state": 64, "head_dim": 64,
        "mamba_chunk_size": 16,
    },
    "qwen3_5_text": {
        **WIDE, "layer_types": DELTA["layer_types"] * 4, "linear_num_key_heads": 8, "linear_num_value_heads": 8,
        "linear_key_head_dim": 64, "linear_value_head_dim": 64, "head_dim": 64,
    },
}  # fmt: skip


def make_model(name: str, dtype: torch.dtype = torch.float32, vocab: int = 64, **changes: Any) -> PreTrainedModel:
    """Return a model with random weights whose logits are far from uniform."""
    set_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2}
    grouped = {} if name in ("bloom", "opt", "phi", "gpt2") else {"num_key_value_heads": 2}
    fields = {"vocab_size": vocab, **size, **tokens, **grouped, **ARCHITECTURES[name], **changes}
    config = AutoConfig.for_model(name, **fields)
    kinds: dict[bool, Any] = {True: AutoModelForSeq2SeqLM, False: AutoModelForCausalLM}
    kind = AutoModelForSpeechSeq2Seq if name == "whisper" else kinds[bool(config.is_encoder_decoder)]
    return kind.from_config(config).eval().to(dtype)
