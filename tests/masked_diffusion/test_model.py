import math

import pytest
import torch
from peft import LoraConfig, PeftModelForFeatureExtraction, get_peft_model

from hf_targets import CurveConfig, MdlmConfig, MdlmForMaskedDiffusion
from hf_targets.masked_diffusion.model import MdlmModel
from hf_targets.maths.noise import NoiseSchedule
from tests.masked_diffusion.models import CURVES, MASK, clean_ids, make_mdlm, masked_batch, masked_ids
from tests.tiny_models import VOCAB

kinds = pytest.mark.parametrize("kind", CURVES)


@pytest.mark.parametrize(
    ("vocab_size", "num_parameters"),
    [(50258, 169_627_218), (30522, 139_292_986)],  # facts of the published models for OpenWebText and LM1B
)
def test_the_sizes_are_those_of_the_published_models(vocab_size, num_parameters):
    with torch.device("meta"):
        model = MdlmForMaskedDiffusion(MdlmConfig(vocab_size=vocab_size))
        curve = MdlmForMaskedDiffusion(MdlmConfig(vocab_size=vocab_size, curve=CurveConfig()))
    assert model.num_parameters() == num_parameters
    assert curve.num_parameters() == num_parameters


@kinds
def test_a_new_model_starts_as_the_published_program_does(kind):
    config = make_mdlm(kind).config
    model = MdlmForMaskedDiffusion(config)
    for name, parameter in model.named_parameters():
        if "adaLN" in name or ".output_layer.linear." in name:
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        elif name.endswith("curves.tokens"):
            assert 0.01 < parameter.std() < 0.03
        else:
            bound = parameter.shape[-1] ** -0.5 if parameter.dim() == 2 else 1
            assert 0 < parameter.abs().max() <= bound + 1e-6, name
            assert parameter.dim() == 1 or parameter.std() > bound / 2, name
    canvas = masked_ids(2, 6)
    at_masks = model(canvas).logits[canvas == MASK][:, :MASK]
    torch.testing.assert_close(at_masks, torch.full_like(at_masks, -math.log(VOCAB - 1)))


@kinds
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_log_probabilities_are_the_logits_at_masked_positions(kind, dtype):
    model, canvas = make_mdlm(kind, time_conditioning=True).to(dtype), masked_ids(3, 9)
    mask, times = torch.ones_like(canvas), torch.tensor([0.2, 0.5, 0.9])
    mask[0, :4], mask[2, 6:] = 0, 0
    where = (canvas == MASK) & (mask == 1) & (torch.arange(9) % 3 != 1)
    assert 3 < where.sum() < 12
    rows = model.log_probabilities(canvas, where, attention_mask=mask, timesteps=times)
    assert rows.dtype == torch.promote_types(dtype, torch.float32)
    expected = model(canvas, attention_mask=mask, timesteps=times).logits[where]
    torch.testing.assert_close(rows, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="needs timesteps"):
        model.log_probabilities(canvas, where)


@pytest.mark.parametrize("name", ["log_linear", "cosine", "cosine_squared"])
def test_a_masked_target_weighs_as_the_schedule_says(name):
    model, batch = make_mdlm(noise_schedule=name).double(), masked_batch()
    batch["timesteps"] = batch["timesteps"].double()
    weights = NoiseSchedule(name).weight(batch["timesteps"])
    logits = model(**batch).logits.gather(-1, batch["labels"].clamp(min=0)[..., None])[..., 0]
    targets = (batch["input_ids"] == MASK) & (batch["labels"] != -100)
    expected = -(logits * targets * weights[:, None]).sum() / (3 * 8)
    torch.testing.assert_close(model(**batch).loss, expected, rtol=1e-6, atol=0)


def test_times_are_spread_over_the_batch_and_masks_come_with_their_chance():
    model, ids = make_mdlm(), clean_ids(64, 32)
    output = model(ids, labels=ids, skip_logits=True)
    parts = (output.timesteps - 1e-3) / (1 - 1e-3) * 64
    assert torch.equal(parts.floor().sort().values, torch.arange(64.0))
    shares = (output.canvas == MASK).float().mean(1)
    assert (shares - output.timesteps).abs().mean() < 0.1
    assert (shares - output.timesteps).mean().abs() < 0.05


def test_a_generator_makes_the_draw_repeatable_and_leaves_the_global_state_alone():
    model, ids = make_mdlm(), clean_ids(4, 16)
    state = torch.get_rng_state()
    outputs = [model(ids, labels=ids, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), state)
    for name in ("canvas", "timesteps", "loss"):
        one, again, other = (getattr(output, name) for output in outputs)
        assert torch.equal(one, again) and not torch.equal(one, other)
    assert not torch.equal(*(model(ids, labels=ids).canvas for _ in range(2)))


def test_a_canvas_with_times_is_taken_as_it_is():
    model, batch = make_mdlm(), masked_batch()
    output, without = model(**batch), model(batch["input_ids"])
    assert torch.equal(output.canvas, batch["input_ids"])
    assert torch.equal(output.timesteps, batch["timesteps"])
    assert torch.equal(without.logits, output.logits)
    assert without.loss is without.loss_parts is without.row_nelbos is without.timesteps is None


def test_logits_are_left_out_in_training_with_labels_or_when_asked():
    model, batch = make_mdlm(), masked_batch()
    assert model(**batch).logits is not None
    assert model(**batch, skip_logits=True).logits is None
    assert model.train()(**batch).logits is None
    assert model(batch["input_ids"]).logits is not None


@pytest.mark.parametrize("start", ["plain", "curves"])
@kinds
def test_another_curve_keeps_the_weights(start, kind):
    model = make_mdlm(start, dropout=0.1).train()
    curve = CURVES[kind] and CurveConfig(**CURVES[kind])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    other = model.with_curve(curve)
    assert other.training and other.config.dropout == 0.1
    num_curves = 1 if curve is None else curve.num_curves
    keeps_curves = start == "curves" and num_curves == 3
    for name, tensor in other.state_dict().items():
        if ".curves." not in name or keeps_curves:
            assert torch.equal(tensor, before[name]), name
    assert any(".curves." in name for name in other.state_dict()) == (num_curves > 1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_curve_may_be_given_by_its_fields():
    model = make_mdlm()
    model.backbone.requires_grad_(False)
    curved = model.with_curve({"degree": 2, "num_curves": 2})
    assert curved.config.curve.num_curves == 2
    trained = {name for name, parameter in curved.named_parameters() if parameter.requires_grad}
    assert trained
    assert all(name.startswith("backbone.curves.") for name in trained)  # what is new


def test_a_bert_tokenizers_segments_are_taken():
    model, canvas = make_mdlm(), masked_ids(2, 6)
    segments = torch.zeros_like(canvas)
    assert torch.equal(model(canvas, token_type_ids=segments).logits, model(canvas).logits)
    assert model.generate(canvas, token_type_ids=segments, temperature=0.0).shape == canvas.shape


def test_what_generic_callers_give_any_model_is_taken_if_it_asks_for_nothing():
    model, ids = make_mdlm(), masked_ids(2, 6)
    tuned = PeftModelForFeatureExtraction(make_mdlm(), LoraConfig(target_modules=["attn_qkv"]))
    assert torch.equal(tuned(input_ids=ids, use_cache=False).logits, model(ids).logits)
    for one in (model, MdlmModel(model.config)):
        for wrong in ({"inputs_embeds": torch.zeros(2, 6, 32)}, {"input_ids": ids, "use_cache": True}, {}):
            with pytest.raises(ValueError, match="leave out inputs_embeds"):
                one(**wrong)


def test_adapters_that_would_have_no_effect_or_be_lost_are_refused():
    tuned = get_peft_model(make_mdlm(), LoraConfig(target_modules=["attn_qkv"]))
    useless = get_peft_model(make_mdlm(), LoraConfig(r=2, target_modules=["linear"]))
    for call in (lambda: useless(input_ids=masked_ids(2, 6)), lambda: tuned.with_curve(None)):
        with pytest.raises(ValueError, match="adapter"):
            call()
