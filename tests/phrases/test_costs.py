import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, MixtralConfig

from hf_targets.phrases.costs import (
    PhraseCost,
    format_phrase_costs,
    forward_flops,
    generation_flops,
    model_size,
    phrase_costs,
    phrase_table_bytes,
)
from tests.tiny_models import CONFIGS, make_backbone, token_ids

FAMILIES = ("gpt_neo", "gpt2", "llama", "qwen3", "opt", "phi")
GPT2 = model_size(GPT2Config())
TINY = model_size(CONFIGS["llama"]())


def eager_backbone(family, **changes):
    model = make_backbone(family, **changes)
    model.set_attn_implementation("eager")  # whose matrix products are all counted
    return model


def counted(model, ids, **arguments):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        output = model(ids, **arguments)
    return counter.get_total_flops(), output


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forward_pass_takes_the_operations_that_torch_counts_in_it(family):
    model = eager_backbone(family)
    size = model_size(model)
    assert size == model_size(CONFIGS[family]())
    for time in (1, 7):
        assert forward_flops(size, time) == counted(model, token_ids(1, time), use_cache=False)[0]


def test_heads_may_be_wider_than_their_share_of_the_model():
    model = eager_backbone("qwen3", head_dim=24)
    assert model_size(model).attention_width == 2 * 4 * 24
    assert forward_flops(model_size(model), 7) == counted(model, token_ids(1, 7), use_cache=False)[0]


@pytest.mark.parametrize("family", ["gpt2", "qwen3"])
def test_generation_takes_the_operations_of_its_passes_with_the_cache_and_without(family):
    model = eager_backbone(family)
    prefix, num_steps, ids = 5, 4, token_ids(1, 9)
    total, output = counted(model, ids[:, :prefix], logits_to_keep=1)
    for time in range(prefix, prefix + num_steps - 1):
        more, output = counted(model, ids[:, time : time + 1], past_key_values=output.past_key_values)
        total += more
    assert generation_flops(model_size(model), prefix, num_steps) == total
    anew = (counted(model, ids[:, :time], logits_to_keep=1)[0] for time in range(prefix, prefix + num_steps))
    assert generation_flops(model_size(model), prefix, num_steps, use_cache=False) == sum(anew)


@settings(derandomize=True, deadline=None)
@given(time=st.integers(1, 300), num_phrases=st.integers(0, 100_000))
def test_gpt_2_takes_what_the_paper_s_corrected_sum_says_and_its_share_of_additions(time, num_phrases):
    vocab, width, layers = 50257, 768, 12
    found = forward_flops(GPT2, time, num_phrases)
    per_layer = 24 * time * width**2 + 4 * time**2 * width
    assert found == 2 * time * (vocab + num_phrases) * width + per_layer * layers
    share = num_phrases / (vocab + num_phrases + (12 * width + 2 * time) * layers)
    assert 1 - forward_flops(GPT2, time) / found == pytest.approx(share)


@settings(derandomize=True, deadline=None)
@given(first=st.integers(0, 20), second=st.integers(1, 20), num_phrases=st.integers(0, 50))
def test_passes_over_cached_positions_never_take_more_than_one_over_all(first, second, num_phrases):
    whole = forward_flops(TINY, first + second, num_phrases)
    parts = forward_flops(TINY, first, num_phrases) + forward_flops(TINY, second, num_phrases, num_cached=first)
    assert whole - parts == 4 * first * second * TINY.attention_width  # the upper right of the square
    phrases = forward_flops(TINY, second, num_phrases, num_logits=1) - forward_flops(TINY, second, num_logits=1)
    assert phrases == 2 * num_phrases * TINY.embedding_width


def test_the_size_of_gpt_2_is_known():
    assert (GPT2.weights, GPT2.attention_width) == (12 * 768**2 * 12, 768 * 12)
    assert (GPT2.vocab_size, GPT2.embedding_width, GPT2.num_parameters) == (50257, 768, 124_439_808)


def test_measuring_a_configuration_leaves_the_random_state_alone():
    state = torch.get_rng_state()
    model_size(CONFIGS["gpt2"]())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("num_phrases", "gibibytes"), [(2048, 1.2529), (8192, 1.2880), (16384, 1.3349), (65536, 1.6161)]
)
def test_memory_grows_by_two_tables_in_the_paper_s_table_13(num_phrases, gibibytes):
    grown = phrase_table_bytes(num_phrases, 768, num_tables=2) / 2**30
    assert grown == pytest.approx(gibibytes - 1.2411, abs=2e-4)
    assert phrase_table_bytes(num_phrases, 768, dtype=torch.bfloat16) * 4 == phrase_table_bytes(
        num_phrases, 768, num_tables=2
    )


def test_costs_are_the_means_of_the_texts_and_the_memory_of_all_that_is_held():
    costs = phrase_costs(TINY, {0: [8], 4: [3, 6]}, prefix_length=5, encoder=GPT2, num_tables=2)
    ones = [generation_flops(TINY, 5, steps, 4) for steps in (3, 6)]
    plain = TINY.num_parameters * 4
    assert costs == [
        PhraseCost(0, 8, generation_flops(TINY, 5, 8), plain),
        PhraseCost(4, 4.5, sum(ones) / 2, plain + GPT2.num_parameters * 4 + 2 * 4 * 32 * 4),
    ]
    assert phrase_costs(TINY, {4: [3]}, prefix_length=5, dtype=torch.bfloat16)[0].num_bytes == plain / 2 + 4 * 32 * 2


def test_a_table_is_relative_to_its_first_row():
    table = format_phrase_costs([PhraseCost(0, 128, 4e12, 2**30), PhraseCost(65536, 73.25, 3e12, 3 * 2**29)])
    assert table.splitlines()[2:] == [
        "| 0 | 4 | 1.00 | 128.0 | 1.0000 | 1.00 |",
        "| 65,536 | 3 | 0.75 | 73.2 | 1.5000 | 1.50 |",
    ]


def test_models_whose_cost_is_not_one_of_matrices_are_refused():
    experts = MixtralConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64
    )
    with pytest.raises(ValueError, match=r"only matrices.*MixtralForCausalLM.*flop_counter"):
        model_size(experts)
    with pytest.raises(ValueError, match="GPT2Model has none; give a causal model"):
        model_size(make_backbone("gpt2").transformer)


@pytest.mark.parametrize(
    ("measure", "says"),
    [
        (lambda: forward_flops(TINY, 2, num_logits=3), "num_logits=3"),
        (lambda: forward_flops(TINY, 2, -1), "num_phrases=-1"),
        (lambda: generation_flops(TINY, 0, 3), "0 positions and 3 steps"),
        (lambda: generation_flops(TINY, 3, 0), "3 positions and 0 steps"),
        (lambda: phrase_table_bytes(-1, 768), "-1 phrases"),
        (lambda: phrase_costs(TINY, {4: []}, prefix_length=5), "4 has none"),
    ],
)
def test_counts_that_cannot_be_are_refused(measure, says):
    with pytest.raises(ValueError, match=says):
        measure()
