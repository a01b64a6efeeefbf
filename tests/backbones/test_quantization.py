"""Quantised backbones: wrappers carry the quantizer, and their new parts stay as they are."""

import copy

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.quantizers.quantizers_utils import should_convert_module
from transformers.trainer_utils import validate_quantization_for_training
from transformers.utils.quantization_config import QuantizationConfigMixin

from hf_targets import DynamicVocabForCausalLM, MultiTokenForCausalLM, SemiAutoregressiveForCausalLM
from hf_targets.backbones.quantization import is_quantized
from tests.tiny_models import make_backbone, make_vocabulary, phrase_batch, token_ids

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


def test_linear_layers_of_a_models_own_are_not_quantised():
    config = transformers.FalconConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    assert not is_quantized(transformers.FalconForCausalLM(config))


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


class Bytes(torch.Tensor):
    """A matrix of whole eighths as int8, for which only products and `dequantize` are defined."""

    def __new__(cls, numbers):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=torch.float32)

    def __init__(self, numbers):
        self.numbers = numbers

    def __tensor_flatten__(self):
        return ["numbers"], None

    def dequantize(self):
        return self.numbers / 8

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is nn.functional.linear:
            return function(args[0], args[1].dequantize(), *args[2:])
        return super().__torch_function__(function, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, function, types, args, kwargs=None):
        if function in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return cls(args[0].numbers)
        raise NotImplementedError(f"{function} of quantised numbers")


def pack(model):
    """Quantise all linear layers of a model in their places, the output matrix too, as torchao's `quantize_` does."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            numbers = (layer.weight.detach() * 8).round().to(torch.int8)
            layer.weight = nn.Parameter(Bytes(numbers), requires_grad=False)
    return model.eval()


def trained(model, **inputs):
    """Take a step of what a model adds to its base."""
    model.train()(**inputs).loss.backward()
    with torch.no_grad():
        for weight in model.eval().get_submodule(model.new_part).parameters():
            weight.sub_(0 if weight.grad is None else weight.grad)


def come_back_alone(model, folder, pack=lambda model: model):
    """Assert that heads of a model, saved alone after a step, have its outputs on the base that is loaded again."""
    ids = token_ids(2, 8)
    trained(model, input_ids=ids, labels=ids)
    model.save_pretrained(folder, heads_only=True)
    again, told = AutoModelForCausalLM.from_pretrained(folder), {"labels": ids, "ensemble_weight": 0.3}
    pack(again.backbone)
    with torch.no_grad():
        torch.testing.assert_close(again(ids, **told).logits, model(ids, **told).logits)


def test_heads_on_weights_of_a_class_of_their_own_are_trained_and_come_back_alone(folder, tmp_path):
    base, read = pack(AutoModelForCausalLM.from_pretrained(folder)), {"max_new_tokens": 8, "do_sample": False}
    model = MultiTokenForCausalLM.from_base(base, ngram_size=3)
    assert torch.equal(model.generate(token_ids(2, 8), **read, draft_tokens=2), base.generate(token_ids(2, 8), **read))
    come_back_alone(model, tmp_path / "heads", pack)


def test_phrases_on_weights_of_a_class_of_their_own_are_trained_and_generated(folder):
    base, vocabulary = pack(AutoModelForCausalLM.from_pretrained(folder)), make_vocabulary()
    model = DynamicVocabForCausalLM.from_base(base).eval()
    torch.testing.assert_close(model(token_ids(2, 8)).logits, base(token_ids(2, 8)).logits)
    model.generate(token_ids(2, 8), max_new_tokens=4, phrases=vocabulary)
    before = model.phrase_table(vocabulary).output_rows
    trained(model, **phrase_batch())
    assert not torch.equal(model.phrase_table(vocabulary).output_rows, before)


def quantization_of(kind):
    """Return the configuration of one kind, or skip the test where its library is missing."""
    module, bits = kind.split()
    found = pytest.importorskip("torchao.quantization" if module == "torchao" else module)
    if module == "bitsandbytes":
        return transformers.BitsAndBytesConfig(**{f"load_in_{bits}": True})
    if module == "optimum.quanto":
        return transformers.QuantoConfig(weights=bits)
    weights = found.Int8WeightOnlyConfig() if bits == "int8" else found.IntxWeightOnlyConfig(torch.int4)
    return transformers.TorchAoConfig(weights)


KINDS = ("torchao int8", "torchao int4", "optimum.quanto int4", "bitsandbytes 4bit", "bitsandbytes 8bit")


@pytest.mark.parametrize("kind", KINDS)
def test_a_base_that_a_library_has_quantised_has_heads_that_come_back_alone_and_phrases(kind, tmp_path):
    options, read = {"quantization_config": quantization_of(kind)}, {"max_new_tokens": 8, "do_sample": False}
    make_backbone("llama", hidden_size=128, head_dim=32).save_pretrained(tmp_path / "base")
    model = MultiTokenForCausalLM.from_base(tmp_path / "base", ngram_size=3, **options).eval()
    plain = model.backbone.generate(token_ids(2, 8), **read)
    assert torch.equal(model.generate(token_ids(2, 8), **read, draft_tokens=2), plain)
    come_back_alone(model, tmp_path / "heads")
    phrases = DynamicVocabForCausalLM.from_base(tmp_path / "base", **options).eval()
    before = phrases.phrase_table(make_vocabulary()).output_rows
    trained(phrases, **phrase_batch())
    assert not torch.equal(phrases.phrase_table(make_vocabulary()).output_rows, before)
