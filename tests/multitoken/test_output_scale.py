"""Heads on models that scale what their output matrix reads, or cap the logits that it gives."""

import pytest
import torch
from torch.nn import functional as F
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    CohereConfig,
    Gemma2Config,
    Gemma4TextConfig,
    GraniteConfig,
    T5GemmaConfig,
)

from hf_targets import DynamicVocabForCausalLM, MdlmForMaskedDiffusion, MultiTokenForCausalLM, MultiTokenForSeq2SeqLM
from tests.multitoken.by_hand import equations
from tests.tiny_backbones import SMALL, make_backbone, token_ids

SIZES = {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2, "pad_token_id": 0, "initializer_range": 0.2}
SIZES |= {"bos_token_id": 0, "eos_token_id": 0, "max_position_embeddings": 64}
CAP = 1.5  # of logits up to 5
SCALED = {
    "cohere": (lambda: CohereConfig(**SIZES, logit_scale=0.3), 0.3),
    "granite": (lambda: GraniteConfig(**SIZES, logits_scaling=4.0), 0.25),
    "gemma2": (lambda: Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=CAP), 1.0),
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
def test_loss_and_ensemble_are_those_of_the_formulas_with_scaled_or_capped_logits(config, scale):
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


@pytest.mark.parametrize(
    "fields", [{"separate_output_heads": True}, {"draft_vocab_size": 50}, {"draft_vocab_size": 20}], ids=str
)
def test_heads_cap_their_logits_in_the_loss_and_in_drafts(fields):
    model, ids = make_scaled(SCALED["gemma2"][0], target="embedding", **fields).double(), token_ids(2, 9)
    hidden, matrix = model.backbone.base_model(ids)[0], model.get_output_embeddings().weight
    if "draft_vocab_size" not in fields or fields["draft_vocab_size"] == 50:
        loss, _, _ = equations(model, hidden, ids, F.pad(ids[:, 1:], (0, 1), value=-100))
        torch.testing.assert_close(model(ids, labels=ids).loss, loss, rtol=1e-9, atol=1e-9)
    whole = CAP * torch.tanh(model.heads[0](hidden[0]) @ matrix.T / CAP)
    drafted = model.parallel_logits(model.future_states(hidden[0], 1))[:, 0]
    torch.testing.assert_close(drafted, whole[:, : drafted.shape[1]])
    assert 1 < drafted.abs().max() < CAP


def test_an_encoder_decoder_model_that_caps_its_logits_gets_heads():
    stack = {**SIZES, "head_dim": 8, "final_logit_softcapping": CAP}
    torch.manual_seed(0)
    base = AutoModelForSeq2SeqLM.from_config(T5GemmaConfig(encoder=stack, decoder=stack)).double().eval()
    model, source = MultiTokenForSeq2SeqLM.from_base(base, ngram_size=3).eval(), {"input_ids": token_ids(1, 7)}
    given = {**source, "decoder_input_ids": token_ids(1, 5)}
    assert torch.equal(model(**given).logits, base(**given).logits)
    told = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    assert torch.equal(model.generate(**source, draft_tokens=2, **told), base.generate(**source, **told))


@pytest.mark.parametrize("make", [DynamicVocabForCausalLM.from_base, MdlmForMaskedDiffusion.from_causal])
def test_a_cap_is_refused_by_targets_that_do_not_compute_it(make):
    base = AutoModelForCausalLM.from_config(SCALED["gemma2"][0]())
    with pytest.raises(ValueError, match=r"Gemma2ForCausalLM caps its logits at 1\.5"):
        make(base, **({"mask_token_id": 49} if make == MdlmForMaskedDiffusion.from_causal else {}))


def test_a_transform_of_the_logits_is_refused():
    base = make_backbone("llama")
    base.register_forward_hook(lambda _, inputs, output: setattr(output, "logits", output.logits.sinh()))
    with pytest.raises(ValueError, match="does more than apply its output embedding to its last hidden states"):
        MultiTokenForCausalLM.from_base(base)


def test_a_backbone_whose_layers_differ_comes_back(tmp_path):
    layers = {"head_dim": 8, "global_head_dim": 16, "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 50}
    model = make_scaled(lambda: Gemma4TextConfig(**SIZES, **layers))
    model.save_pretrained(tmp_path)
    again, ids = AutoModelForCausalLM.from_pretrained(tmp_path), token_ids(2, 9)
    torch.testing.assert_close(again(ids).logits, model(ids).logits)
    assert not hasattr(again.config, "head_dim") and again.config.hidden_size == 32


def test_a_base_model_whose_weights_are_not_finite_is_told():
    base = make_backbone("llama")
    base.model.norm.weight.data[0] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        MultiTokenForCausalLM.from_base(base, ngram_size=4, loss_weight=0.1)
