"""Quantised backbones: wrappers carry the quantizer, and their new parts stay as they are."""

import copy

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.quantizers.quantizers_utils import should_convert_module
from transformers.trainer_utils import validate_quantization_for_training
from transformers.utils.quantization_config import QuantizationConfigMixin

from hf_targets import DynamicVocabForCausalLM, MultiTokenForCausalLM, SemiAutoregressiveForCausalLM
from tests.tiny_models import make_backbone, token_ids

WRAPPERS = (MultiTokenForCausalLM, DynamicVocabForCausalLM, SemiAutoregressiveForCausalLM)


class Rounded(nn.Linear):
    """A linear layer that multiplies by its weight rounded to eighths."""

    def forward(self, input):
        return nn.functional.linear(input, (self.weight * 8).round() / 8, self.bias)


@register_quantization_config("rounded")
class RoundedConfig(QuantizationConfigMixin):
    def __init__(self, modules_to_not_convert=None, serializable=True, **_):
        self.quant_method = "rounded"
        self.modules_to_not_convert, self.serializable = modules_to_not_convert, serializable


@register_quantizer("rounded")
class RoundedQuantizer(HfQuantizer):
    is_trainable = True

    def is_serializable(self):
        return self.quantization_config.serializable

    def _process_model_before_weight_loading(self, model, **_):
        self.modules_to_not_convert = self.get_modules_to_not_convert(
            model, self.quantization_config.modules_to_not_convert, model._keep_in_fp32_modules
        )
        for name, layer in list(model.named_modules()):
            if type(layer) is nn.Linear and should_convert_module(name, self.modules_to_not_convert):
                layer.__class__ = Rounded


@pytest.fixture
def folder(tmp_path):
    model = make_backbone("llama", tie_word_embeddings=False)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)
    model.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def rounded_parts(model):
    return {name for name, layer in model.named_modules() if isinstance(layer, Rounded)}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("skipped", [None, ["model.layers.0", "lm_head"]], ids=["default", "given"])
def test_a_wrapper_of_a_quantised_model_comes_back_with_the_same_layers_quantised(wrapper, skipped, folder, tmp_path):
    base = AutoModelForCausalLM.from_pretrained(folder, quantization_config=RoundedConfig(skipped))
    quantised, config = {f"backbone.{name}" for name in rounded_parts(base)}, copy.deepcopy(base.config)
    model = wrapper.from_base(base).eval()
    assert base.config.to_dict() == config.to_dict()
    assert rounded_parts(model) == quantised
    validate_quantization_for_training(model)  # raises where a Trainer would want an adapter
    model.save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert rounded_parts(again) == quantised
    torch.testing.assert_close(again(token_ids(2, 8)).logits, model(token_ids(2, 8)).logits)
    again.backbone.save_pretrained(tmp_path / "backbone")
    assert f"backbone.{min(rounded_parts(AutoModelForCausalLM.from_pretrained(tmp_path / 'backbone')))}" in quantised


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_saved_model_that_is_quantised_when_it_is_loaded_keeps_its_new_part(wrapper, dtype, folder, tmp_path):
    wrapper.from_base(folder).save_pretrained(tmp_path / "saved")
    loaded = wrapper.from_pretrained(tmp_path / "saved", quantization_config=RoundedConfig(), dtype=dtype)
    assert rounded_parts(loaded) and not rounded_parts(getattr(loaded, wrapper.new_part))
    assert {weight.dtype for weight in loaded.parameters()} == {dtype}


def test_what_its_quantizer_cannot_save_is_refused_and_its_heads_alone_come_back_on_it(folder, tmp_path):
    model = MultiTokenForCausalLM.from_base(folder, quantization_config=RoundedConfig(serializable=False)).eval()
    with pytest.raises(ValueError, match="not serializable"):
        model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "heads", heads_only=True)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "heads")
    assert rounded_parts(again) == rounded_parts(model)
    torch.testing.assert_close(again(token_ids(2, 8)).logits, model(token_ids(2, 8)).logits)


def test_the_phrase_encoder_of_a_quantised_model_is_a_plain_copy_of_the_same_outputs(folder):
    base = AutoModelForCausalLM.from_pretrained(folder, quantization_config=RoundedConfig()).eval()
    for given in (None, base, AutoModelForCausalLM.from_pretrained(folder, quantization_config=RoundedConfig())):
        encoder = DynamicVocabForCausalLM.from_base(base, given).eval().phrase_encoder.transformer
        assert not rounded_parts(encoder) and not hasattr(encoder.config, "quantization_config")
        ids = token_ids(2, 8)
        torch.testing.assert_close(encoder(ids)[0], base.base_model(ids)[0], rtol=1e-3, atol=1e-3)
