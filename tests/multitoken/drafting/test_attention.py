"""Attention of drafted passes is that of Transformers, without copies of the keys."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.integrations import sdpa_attention

from hf_targets import draft
from hf_targets.multitoken.drafting.attention import grouped_sdpa
from tests.tiny_models import token_ids


@given(
    rows=st.integers(1, 3),
    groups=st.integers(1, 3),
    shared=st.integers(1, 3),
    chunk=st.integers(1, 5),
    length=st.integers(5, 9),
    value_dim=st.sampled_from([4, 6]),
    mask_of=st.sampled_from(["none", "rows", "all rows", "heads"]),
    is_float=st.booleans(),
    seed=st.integers(0, 99),
)
def test_grouped_queries_read_what_each_head_does(
    rows, groups, shared, chunk, length, value_dim, mask_of, is_float, seed
):
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    query = numbers(rows, groups * shared, chunk, 4)
    key, value = numbers(rows, groups, length, 4), numbers(rows, groups, length, value_dim)
    of_rows, of_heads = 1 if mask_of == "all rows" else rows, groups * shared if mask_of == "heads" else 1
    mask = numbers(of_rows, of_heads, chunk, length) > 0
    mask[..., 0] = True
    mask = torch.zeros(mask.shape).double().masked_fill(~mask, -1e9) if is_float else mask
    module = nn.Module()
    module.num_key_value_groups, module.is_causal = shared, False
    given = module, query, key, value, None if mask_of == "none" else mask
    expected = sdpa_attention.sdpa_attention_forward(*given, scaling=0.3)[0]
    torch.testing.assert_close(grouped_sdpa(*given, scaling=0.3)[0], expected)


@pytest.mark.usefixtures("clear_choices")
def test_a_pass_over_drafts_copies_no_keys(monkeypatch):
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=32, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model, copied, repeat_kv = LlamaForCausalLM(config).eval(), [], sdpa_attention.repeat_kv

    def recorded(states, groups):
        copied.append(states.shape)
        return repeat_kv(states, groups)

    ids = token_ids(2, 8).repeat(1, 2)
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False}
    expected = model.generate(ids, **options)
    monkeypatch.setattr(sdpa_attention, "repeat_kv", recorded)
    output = model.generate(ids, custom_generate=draft(), return_dict_in_generate=True, **options)
    assert torch.equal(output.sequences, expected)
    assert output.num_drafted_tokens
    assert {shape[2] for shape in copied} <= {ids.shape[1]}  # of the prompt
