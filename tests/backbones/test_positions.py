import pytest
import torch
from transformers import AutoModelForCausalLM, CTRLConfig, GPTJConfig, MptConfig

from hf_targets.backbones.positions import check_positions, max_positions, position_limit
from tests.tiny_models import VOCAB, make_backbone, make_model, token_ids

SMALL = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64}


def tiny(family: str):
    """Return a backbone, also of families whose positions are a buffer."""
    configs = {"gptj": lambda: GPTJConfig(**SMALL, rotary_dim=4), "ctrl": lambda: CTRLConfig(**SMALL, dff=32)}
    if family not in configs:
        return make_backbone(family)
    return AutoModelForCausalLM.from_config(configs[family]()).eval()


@pytest.mark.parametrize("family", ["gpt2", "gpt_neo", "opt", "gptj", "ctrl"])
def test_a_limit_is_the_last_length_that_the_model_reads(family):
    model = tiny(family)
    limit = position_limit(model)
    assert limit == max_positions(model.config) == 64
    with torch.no_grad():
        model(torch.ones(1, limit, dtype=torch.long))
        with pytest.raises((IndexError, RuntimeError)):
            model(torch.ones(1, limit + 1, dtype=torch.long))


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi"])
def test_positions_that_are_computed_have_no_limit(family):
    model = tiny(family)
    assert max_positions(model.config) is not None
    assert position_limit(model) is None


def test_a_configuration_without_positions_has_no_limit():
    config = MptConfig(vocab_size=VOCAB, d_model=32, n_heads=4, n_layers=1)
    assert position_limit(AutoModelForCausalLM.from_config(config)) is None


def test_positions_below_0_are_those_of_padding_where_the_table_has_rows_for_them():
    positions = torch.tensor([[-1, -1, 0, 1]])
    check_positions(make_backbone("opt"), positions)
    with pytest.raises(ValueError, match="position_ids"):
        check_positions(make_backbone("gpt2"), positions)


def test_a_text_beyond_the_table_is_told_as_one():
    model = make_model()
    with pytest.raises(ValueError, match="64 positions"):
        model(input_ids=token_ids(1, 65))
