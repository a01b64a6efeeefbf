"""Drafts with models that keep a state of the text: the same text, whatever part of a draft is accepted."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BambaConfig,
    DynamicCache,
    FalconH1Config,
    GraniteMoeHybridConfig,
    JambaConfig,
    Lfm2Config,
    Mamba2Config,
    MambaConfig,
    NemotronHConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    RecurrentGemmaConfig,
    Zamba2Config,
)

from hf_targets import draft
from tests.tiny_backbones import SMALL, left_padded, token_ids

NEW = 30
GREEDY = {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": 0, "eos_token_id": None}
SIZE = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 64}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8}
EXPERTS = {"num_experts_per_tok": 1, "shared_intermediate_size": 32}
DELTA = {
    "head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
ANY_STEP = {"time_step_min": 1e-9}  # a longer least step holds only in passes of several tokens, in Transformers
CONFIGS = {
    "mamba2": lambda: Mamba2Config(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, state_size=8, num_heads=4, head_dim=16, n_groups=1
    ),
    "bamba": lambda: BambaConfig(**SIZE, **MAMBA, attn_layer_indices=[1]),
    "falcon_h1": lambda: FalconH1Config(**SIZE, **MAMBA, mamba_d_ssm=64, head_dim=8),
    "granite": lambda: GraniteMoeHybridConfig(
        **SIZE, **MAMBA, **EXPERTS, num_local_experts=2, layer_types=["mamba", "attention"]
    ),
    "zamba2": lambda: Zamba2Config(
        **SIZE, **ANY_STEP, mamba_d_state=8, n_mamba_heads=4, mamba_ngroups=1, adapter_rank=4, num_mem_blocks=1,
        layers_block_type=["mamba", "hybrid"],
    ),
    "nemotron_h": lambda: NemotronHConfig(
        **SIZE, **ANY_STEP, mamba_num_heads=4, mamba_head_dim=16, n_groups=1, ssm_state_size=8, head_dim=8,
        layers_block_type=["mamba", "attention"],
    ),
    "qwen3_next": lambda: Qwen3NextConfig(
        **SIZE, **DELTA, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "qwen3_5": lambda: Qwen3_5TextConfig(**SIZE, **DELTA),
    "lfm2": lambda: Lfm2Config(**SIZE, layer_types=["conv", "full_attention"]),
    "mamba": lambda: MambaConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, state_size=4),
    "jamba": lambda: JambaConfig(**SIZE, mamba_dt_rank=4, attn_layer_offset=1, attn_layer_period=2, num_experts=1),
    "recurrent_gemma": lambda: RecurrentGemmaConfig(
        **{**SIZE, "num_hidden_layers": 3}, lru_width=32, attention_window_size=8
    ),
}  # fmt: skip


def make_state_model(family):
    torch.manual_seed(0)
    config = CONFIGS[family]()
    config.initializer_range = 0.2
    return AutoModelForCausalLM.from_config(config).eval()


def inputs_of(rows):
    ids, mask = left_padded(rows)
    return {"input_ids": ids, "attention_mask": mask}


def drafts_from(texts, wrong_every):
    """Return drafts that look in texts of which some tokens are wrong, so that parts of drafts are accepted."""
    drafts = draft(answers=True)
    texts = texts.clone()
    texts[:, ::wrong_every] = 5
    for text in texts.tolist():
        drafts.others["answers"].extend([*text, -1])
    return drafts


CACHES = [(name, None) for name in CONFIGS if name not in ("mamba", "jamba", "recurrent_gemma")]
CACHES += [(name, "static") for name in ("bamba", "granite", "lfm2", "nemotron_h", "qwen3_5", "qwen3_next")]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("family", "cache"), CACHES)
def test_greedy_texts_are_the_plain_ones(family, cache, rows):
    model, inputs = make_state_model(family), inputs_of(rows)
    told = {**GREEDY, "cache_implementation": cache}
    plain = model.generate(**inputs, **told)
    drafts = drafts_from(plain[:, 7:], wrong_every=6)
    output = model.generate(**inputs, custom_generate=drafts, return_dict_in_generate=True, **told)
    assert torch.equal(output.sequences, plain)
    assert NEW / 6 < output.draft_report["passes"] < NEW


@pytest.mark.parametrize("family", ["mamba2", "falcon_h1"])
def test_rows_end_one_after_another(family):
    model, inputs = make_state_model(family), inputs_of(4)
    free = model.generate(**inputs, **GREEDY)
    told = {**GREEDY, "eos_token_id": [int(free[0, 12]), int(free[1, 20])]}
    plain = model.generate(**inputs, **told)
    assert len(set((plain[:, 7:] != 0).sum(dim=1).tolist())) > 1
    assert torch.equal(model.generate(**inputs, custom_generate=drafts_from(free[:, 7:], 6), **told), plain)


@pytest.mark.parametrize("family", ["mamba2", "qwen3_5"])
def test_a_sampled_row_draws_the_text_of_the_plain_one(family):
    model, texts = make_state_model(family), []
    for way in ({}, {"custom_generate": draft()}):
        torch.manual_seed(1)
        told = {**GREEDY, **way, "do_sample": True, "temperature": 0.5, "suppress_tokens": list(range(6, 50))}
        texts.append(model.generate(**inputs_of(1), **told))
    assert torch.equal(*texts)


def test_a_cache_that_is_returned_goes_on_with_the_text():
    model, inputs = make_state_model("falcon_h1"), inputs_of(1)
    plain = model.generate(**inputs, **{**GREEDY, "max_new_tokens": NEW + 9})
    drafts = drafts_from(plain[:, 7:], wrong_every=6)
    output = model.generate(**inputs, custom_generate=drafts, return_dict_in_generate=True, **GREEDY)
    told = {"past_key_values": output.past_key_values, "custom_generate": drafts, **GREEDY, "max_new_tokens": 9}
    assert torch.equal(model.generate(output.sequences, **told), plain)


@pytest.mark.parametrize("family", ["mamba", "jamba", "recurrent_gemma"])
def test_a_state_that_cannot_be_put_back_is_refused(family):
    with pytest.raises(ValueError, match="from the state in its cache"):
        make_state_model(family).generate(token_ids(1, 8), custom_generate=draft(), **GREEDY)


def test_a_filled_cache_of_states_alone_is_refused():
    model = make_state_model("mamba2")
    cache = DynamicCache(config=model.config)
    model(token_ids(1, 4), cache_params=cache, use_cache=True)
    with pytest.raises(ValueError, match="new cache"):
        model.generate(token_ids(1, 8), cache_params=cache, custom_generate=draft(), **GREEDY)
