import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_targets.backbones.fingerprint import Fingerprint
from tests.tiny_backbones import make_backbone


def test_a_fingerprint_comes_back_from_json():
    found = Fingerprint.of(make_backbone("gpt2"))
    assert Fingerprint.from_json(found.to_json()) == found
    assert len(found.to_json()) < 300 * len(found.weights)


def test_the_first_value_the_last_and_even_steps_between_are_kept():
    model = make_backbone("gpt2")
    with torch.no_grad():
        model.transformer.wte.weight.copy_(torch.arange(50 * 32).view(50, 32))
        model.transformer.ln_f.bias.copy_(torch.arange(32))
    weights = Fingerprint.of(model).weights
    assert weights["transformer.wte.weight"].values == (0, 228, 456, 685, 913, 1142, 1370, 1599)
    assert weights["transformer.ln_f.bias"].values == (0, 4, 8, 13, 17, 22, 26, 31)


def test_tied_weights_count_once():
    assert "lm_head.weight" not in Fingerprint.of(make_backbone("gpt2")).weights
    assert "lm_head.weight" in Fingerprint.of(make_backbone("gpt2", tie_word_embeddings=False)).weights


def test_what_is_missing_or_new_comes_first_then_shapes_then_values():
    small, large = make_backbone("llama", num_hidden_layers=1, seed=1), make_backbone("llama", intermediate_size=48)
    told = Fingerprint.of(large).differences(Fingerprint.of(small))
    told_back = Fingerprint.of(small).differences(Fingerprint.of(large))
    kinds = ["missing" if one.endswith("missing") else "values" if one.endswith("values") else "shape" for one in told]
    assert kinds == sorted(kinds, key=["missing", "shape", "values"].index)
    assert "model.layers.0.mlp.up_proj.weight is (64, 32), not (48, 32)" in told
    assert "model.layers.1.mlp.up_proj.weight is new" in told_back


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_another_type_is_no_difference_and_half_a_percent_in_the_same_type_is_one(dtype):
    model = make_backbone("llama")
    before = Fingerprint.of(model)
    assert not before.differences(Fingerprint.of(model.to(dtype)))
    typed = Fingerprint.of(model)
    with torch.no_grad():
        model.model.norm.weight.mul_(1.01)
    assert typed.differences(Fingerprint.of(model)) == ["model.norm.weight has other values"]


def test_weights_that_are_offloaded_are_compared_by_shape():
    with torch.device("meta"):
        absent = AutoModelForCausalLM.from_config(make_backbone("llama").config)
    present = Fingerprint.of(make_backbone("llama"))
    assert not present.differences(Fingerprint.of(absent))
    wider = Fingerprint.of(make_backbone("llama", intermediate_size=48))
    assert "model.layers.0.mlp.up_proj.weight is (64, 32), not (48, 32)" in wider.differences(Fingerprint.of(absent))


def test_of_a_quantised_model_the_weights_that_are_left_are_compared():
    model = make_backbone("llama")
    before = Fingerprint.of(model)
    layer = model.model.layers[0].mlp
    layer.up_proj.weight = torch.nn.Parameter(torch.zeros(7, 1, dtype=torch.uint8), requires_grad=False)
    layer.register_parameter("scale", torch.nn.Parameter(torch.ones(3)))
    assert "model.layers.0.mlp.scale is new" in before.differences(Fingerprint.of(model))
    model.config.quantization_config = {"quant_method": "any"}
    assert not before.differences(Fingerprint.of(model))
    with torch.no_grad():
        model.lm_head.weight.mul_(1.01)
    assert before.differences(Fingerprint.of(model)) == ["lm_head.weight has other values"]


@pytest.mark.parametrize("text", ["", "3", "{}", '{"weights": [], "quantized": false}'])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match="not a fingerprint of weights"):
        Fingerprint.from_json(text)
