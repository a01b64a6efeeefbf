"""Tiny randomly initialised backbones of several families, and heads on them."""

from functools import cache

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoConfig,
    LlamaConfig,
    MistralConfig,
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
TARGETS = ("difference", "embedding", "conditional")  # the last: differences, with heads that read the conjugate


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
    if config.get("target") == "conditional":
        config |= {"target": "difference", "head": "conditional"}
    return MultiTokenForCausalLM.from_base(make_backbone(family, seed), **{"ngram_size": 4, **config}).eval()


def token_ids(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return random token ids, none of them 0, the end token."""
    return torch.randint(1, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def make_sliding_model() -> MultiTokenForCausalLM:
    """Return heads on a backbone all of whose layers attend to a window, and cache no more than that."""
    torch.manual_seed(0)
    config = MistralConfig(
        **_SMALL, num_key_value_heads=2, intermediate_size=64, sliding_window=6, bos_token_id=0, eos_token_id=0
    )
    config.initializer_range = 0.2
    return MultiTokenForCausalLM.from_base(AutoModelForCausalLM.from_config(config), ngram_size=4).eval()


def teach_heads(model: MultiTokenForCausalLM, texts: torch.Tensor, mask: torch.Tensor, steps: int = 80) -> None:
    """Train the heads alone on a few texts, so that most of their drafts of these are right, and some are not."""
    model.backbone.requires_grad_(False)
    optimizer = torch.optim.Adam(model.heads.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(texts, attention_mask=mask, labels=texts).loss.backward()
        optimizer.step()
    model.requires_grad_(True)


def left_padded(num_rows: int = 4, time: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Return prompts of different lengths, padded on the left with 0, and their mask."""
    ids = token_ids(num_rows, time)
    mask = (torch.arange(time) >= torch.arange(num_rows)[:, None] % 4).long()
    return ids * mask, mask


@cache
def make_drafting_model(family: str = "gpt2", target: str = "difference") -> MultiTokenForCausalLM:
    """Return a model whose heads draft well what it generates from the prompts of `left_padded`."""
    model = make_sliding_model() if family == "mistral" else make_model(family, target=target, loss_weight=6.0)
    ids, mask = left_padded()
    texts = model.generate(ids, attention_mask=mask, max_new_tokens=24, do_sample=False, eos_token_id=None)
    teach_heads(model, texts, torch.cat([mask, mask.new_ones(len(ids), 24)], dim=1))
    return model
