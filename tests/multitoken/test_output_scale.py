"""Heads on causal models whose configuration has a scale between the last hidden states and the output matrix."""

import pytest
import torch
from torch.nn import functional as F
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    Gemma4TextConfig,
    GraniteConfig,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from hf_targets import MultiTokenForCausalLM, MultiTokenForSeq2SeqLM
from tests.multitoken.by_hand import equations
from tests.tiny_backbones import SMALL, make_backbone, token_ids

SIZES = {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2, "pad_token_id": 0, "initializer_range": 0.2}
SIZES |= {"bos_token_id": 0, "eos_token_id": 0, "max_position_embeddings": 64}
SCALED = {
    "cohere": (lambda: CohereConfig(**SIZES, logit_scale=0.3), 0.3),
    "granite": (lambda: GraniteConfig(**SIZES, logits_scaling=4.0), 0.25),
}
families = pytest.mark.parametrize(("config", "scale"), SCALED.values(), ids=SCALED)


def make_scaled(config, **fields):
    torch.manual_seed(0)
    backbone = AutoModelForCausalLM.from_config(config()).eval()
    return MultiTokenForCausalLM.from_base(backbone, **{"ngram_size": 4, "loss_weight": 0.3, **fields}).eval()


@families
def test_logits_are_the_backbones(config, scale, tmp_path):
    model, ids = make_scaled(config), token_ids(2, 9)
    assert model.config.output_scale == scale
    torch.testing.assert_close(model(ids).logits, model.backbone(ids).logits)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config.output_scale == scale
    torch.testing.assert_close(again(ids).logits, model(ids).logits)


@families
def test_loss_and_ensemble_are_those_of_the_formulas_with_scaled_logits(config, scale):
    model, ids = make_scaled(config).double(), token_ids(2, 9)
    targets = F.pad(ids[:, 1:], (0, 1), value=-100)
    loss, _, logits = equations(model, model.backbone.base_model(ids)[0], ids, targets, weight=0.4)
    torch.testing.assert_close(model(ids, ensemble_weight=0.4).logits, logits, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model(ids, labels=ids).loss, loss, rtol=1e-9, atol=1e-9)


@families
def test_drafts_are_verified_by_scaled_states(config, scale):
    model, ids = make_scaled(config).double(), token_ids(2, 9)
    twelve = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    expected = model.generate(ids, **twelve)
    assert torch.equal(model.backbone.generate(ids, **twelve), expected)
    for way in ({"draft_tokens": 3}, {"draft_tokens": 3, "draft_branches": 2}, {"draft_tokens": "auto"}):
        assert torch.equal(model.generate(ids, **way, **twelve), expected)


def test_a_soft_cap_on_the_logits_is_refused():
    with pytest.raises(ValueError, match="does more than apply its output embedding to its last hidden states"):
        make_scaled(lambda: Gemma2Config(**SIZES, head_dim=8))


def test_a_backbone_whose_layers_differ_comes_back(tmp_path):
    layers = {"head_dim": 8, "global_head_dim": 16, "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 50}
    model = make_scaled(lambda: Gemma4TextConfig(**{**SIZES, "final_logit_softcapping": None}, **layers))
    model.save_pretrained(tmp_path)
    again, ids = AutoModelForCausalLM.from_pretrained(tmp_path), token_ids(2, 9)
    torch.testing.assert_close(again(ids).logits, model(ids).logits)
    assert not hasattr(again.config, "head_dim") and again.config.hidden_size == 32


def test_a_backbone_that_reads_no_tokens_is_refused():
    width = {"d_model": 8, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "num_mel_bins": 4}
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 1, "decoder_attention_heads": 1}
    config = WhisperConfig(vocab_size=50, **width, **sizes, pad_token_id=0, bos_token_id=0, eos_token_id=0)
    with pytest.raises(ValueError, match="input_features"):
        MultiTokenForSeq2SeqLM.from_base(WhisperForConditionalGeneration(config))


def test_a_base_model_whose_weights_are_not_finite_is_told():
    base = make_backbone("llama")
    base.model.norm.weight.data[0] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        MultiTokenForCausalLM.from_base(base, ngram_size=4, loss_weight=0.1)
