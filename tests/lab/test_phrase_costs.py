import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, GPT2LMHeadModel

from lab.phrase_costs import forward_flops, generation_flops, model_size
from tests.tiny_models import make_backbone, token_ids

with torch.device("meta"):
    GPT2 = model_size(GPT2LMHeadModel(GPT2Config()))


def eager_backbone(family, **changes):
    model = make_backbone(family, **changes)
    model.set_attn_implementation("eager")  # whose matrix products are all counted
    return model


def counted(model, ids, **arguments):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        output = model(ids, **arguments)
    return counter.get_total_flops(), output


@pytest.mark.parametrize(
    ("family", "changes"), [(name, {}) for name in ("gpt_neo", "gpt2", "llama", "opt")] + [("qwen3", {"head_dim": 24})]
)
def test_a_forward_pass_takes_the_operations_that_torch_counts_in_it(family, changes):
    model = eager_backbone(family, **changes)
    for time in (1, 7):
        assert forward_flops(model_size(model), time) == counted(model, token_ids(1, time), use_cache=False)[0]


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


@given(time=st.integers(1, 300), num_phrases=st.integers(0, 100_000))
def test_gpt_2_takes_what_the_paper_s_corrected_sum_says(time, num_phrases):
    per_layer = 24 * time * 768**2 + 4 * time**2 * 768
    assert forward_flops(GPT2, time, num_phrases) == 2 * time * (50257 + num_phrases) * 768 + per_layer * 12
