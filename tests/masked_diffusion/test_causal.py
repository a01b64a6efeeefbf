"""A causal model as a diffusion model: its attention, the shift of its targets, and what is refused."""

import pytest
import torch
from accelerate import cpu_offload
from peft import PeftModel
from transformers import AutoModelForCausalLM, FalconConfig, GraniteConfig

from hf_targets import MdlmForMaskedDiffusion
from hf_targets.backbones.wrapping import NEW_PARTS_LEARNING_RATE, new_parts_rate
from hf_targets.training.lora import add_lora
from tests.masked_diffusion.models import MASK, clean_ids, make_from_causal, masked_ids
from tests.tiny_backbones import SMALL, VOCAB, make_backbone

families = pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "phi"])


@families
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_fully_causal_and_without_masks_it_predicts_what_the_causal_model_does(family, attention):
    model, ids = make_from_causal(family=family, annealing_steps=5), clean_ids(2, 9)
    model.set_attn_implementation(attention)
    expected = model.backbone(ids).logits[:, :-1, :MASK].log_softmax(-1).flatten(0, 1)
    where = torch.ones_like(ids, dtype=torch.bool)
    where[:, 0] = False
    found = model.train().log_probabilities(ids, where)[:, :MASK]
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(model.eval().log_probabilities(ids, where)[:, :MASK], found, atol=0.1)


@families
def test_a_copy_with_another_curve_predicts_the_same_in_half_precision(family):
    base = AutoModelForCausalLM.from_config(make_backbone(family).config, dtype=torch.bfloat16)
    model, ids = MdlmForMaskedDiffusion.from_causal(base, mask_token_id=MASK), masked_ids(2, 40)
    assert torch.equal(model.with_curve({"place": "hidden"}).with_curve(None)(ids).logits, model(ids).logits)


def test_a_copy_with_curves_keeps_the_rate_of_new_parts_and_an_offloaded_model_is_not_copied(tmp_path):
    make_backbone("llama").save_pretrained(tmp_path)
    model, curves = MdlmForMaskedDiffusion.from_causal(tmp_path, mask_token_id=MASK), {"place": "hidden"}
    assert new_parts_rate(model.with_curve({**curves, "num_curves": 2}), 1e-5) == NEW_PARTS_LEARNING_RATE
    with pytest.raises(ValueError, match="offloaded"):
        cpu_offload(model).with_curve(None)


def test_the_scale_of_a_models_logits_is_kept():
    torch.manual_seed(0)
    config = GraniteConfig(**SMALL, intermediate_size=64, initializer_range=0.2, logits_scaling=4.0)
    base, ids = AutoModelForCausalLM.from_config(config).eval(), clean_ids(1, 9)
    model = MdlmForMaskedDiffusion.from_causal(base, mask_token_id=MASK, annealing_steps=5).train()
    found = model.log_probabilities(ids, torch.arange(9)[None] > 0)[:, :MASK]
    torch.testing.assert_close(found, base(ids).logits[0, :-1, :MASK].log_softmax(-1))


@families
@pytest.mark.parametrize("kind", ["plain", "hidden"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_with_the_full_mask_every_position_sees_every_other_and_no_padding(family, kind, attention):
    model, ids = make_from_causal(kind, family), masked_ids(1, 7)
    model.set_attn_implementation(attention)
    mask = torch.tensor([[0, 1, 1, 1, 1, 1, 0]])
    before = model(ids, attention_mask=mask, output_hidden_states=True).hidden_states[-1][0]
    for changed in range(7):
        other = ids.clone()
        other[0, changed] = (ids[0, changed] + 1) % MASK
        after = model(other, attention_mask=mask, output_hidden_states=True).hidden_states[-1][0]
        differs = (after != before).any(-1)[1:6]
        assert differs.all() if mask[0, changed] else not differs.any()
    whole = model(ids, attention_mask=mask, output_hidden_states=True)
    torch.testing.assert_close(whole.logits[:, 1:6], model(ids[:, 1:6]).logits)
    assert len(whole.hidden_states) == model.config.num_hidden_layers + 1


@pytest.mark.parametrize(("kind", "begin"), [("hidden", []), ("hidden_curves", [0.0])])
def test_control_points_stand_evenly_from_the_first_token_of_their_text_to_its_last(kind, begin):
    reading, lengths = make_from_causal(kind).reading, torch.tensor([7, 4, 1])
    count = reading.curve.num_control_points(7)
    places = reading._positions(torch.empty(3, count + len(begin), 8), 7, lengths)
    for row, length in zip(places, lengths.tolist(), strict=True):
        expected = torch.tensor([*begin, *torch.linspace(0, length - 1, reading.curve.num_control_points(length))])
        torch.testing.assert_close(row[: len(expected)], expected)


@pytest.mark.parametrize("shift", [True, False])
def test_a_token_is_predicted_by_the_state_before_it_or_by_its_own(shift):
    model, ids = make_from_causal(shift=shift), clean_ids(1, 6)
    states = model.reading._call(model.base_model.model, None, None, input_ids=ids)[0]
    expected = states[:, [0, 0, 1, 2, 3, 4]] if shift else states
    assert torch.equal(model(ids, output_hidden_states=True).hidden_states[-1], expected)


def test_later_positions_come_into_sight_step_by_step_and_the_step_is_saved(tmp_path):
    model, ids = make_from_causal(annealing_steps=4).train(), clean_ids(8, 16)
    seen = []
    for step in range(6):
        visible = model.reading._visible(200, ids.device)
        seen.append(visible.float().mean().item())
        if step == 1:
            model.save_pretrained(tmp_path)
            again = MdlmForMaskedDiffusion.from_pretrained(tmp_path)
            assert again.reading.step == 2
    torch.testing.assert_close(torch.tensor(seen), torch.tensor([0, 0.25, 0.5, 0.75, 1, 1]), atol=0.02, rtol=0)
    assert model.eval().reading._visible(200, ids.device) is None
    tuned = add_lora(again, 2).train()
    tuned(input_ids=ids, labels=ids).loss.backward()
    tuned.save_pretrained(tmp_path / "adapter")
    base = MdlmForMaskedDiffusion.from_pretrained(tmp_path)
    assert PeftModel.from_pretrained(base, tmp_path / "adapter").get_base_model().reading.step == 3


@pytest.mark.parametrize(("before", "after"), [(None, 4), (4, None), (4, 9)])
def test_annealing_that_a_checkpoint_was_not_saved_with_begins_with_its_loading(before, after, tmp_path):
    model, ids = make_from_causal(annealing_steps=before), masked_ids(2, 9)
    model.train()(clean_ids(2, 9), labels=clean_ids(2, 9))
    model.save_pretrained(tmp_path / "model")
    place = {"device_map": {"backbone": "disk", "reading": "cpu"}, "offload_folder": tmp_path / "offload"}
    again = MdlmForMaskedDiffusion.from_pretrained(tmp_path / "model", annealing_steps=after, **place)
    torch.testing.assert_close(again(ids).logits, model.eval()(ids).logits)
    assert again.reading.state_dict() == ({} if after is None else {"step": torch.tensor(0 if before is None else 1)})


def test_the_backbone_is_the_given_model_and_keeps_its_ties_when_its_vocabulary_grows():
    base = make_backbone("llama", tie_word_embeddings=True)
    model = MdlmForMaskedDiffusion.from_causal(base, mask_token_id=MASK)
    assert model.backbone is base and not model.training
    assert MdlmForMaskedDiffusion.from_causal(base.train(), mask_token_id=MASK).training
    model.resize_token_embeddings(VOCAB + 3)
    assert model.config.vocab_size == model.config.backbone.vocab_size == VOCAB + 3
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model(torch.tensor([[VOCAB + 2, MASK]])).logits.shape[-1] == VOCAB + 3


@pytest.mark.parametrize(
    ("family", "given", "told"),
    [
        ("llama", {"mask_token_id": VOCAB}, "resize_token_embeddings"),
        ("llama", {"mask_token_id": 0}, "eos_token_id|bos_token_id"),
        ("llama", {"mask_token_id": None}, "mask_token_id"),
        ("llama", {"annealing_steps": 0}, "annealing_steps"),
        ("llama", {"time_conditioning": True}, "time_conditioning"),
        ("gpt_neo", {}, "mask"),
        ("opt", {}, "mask"),
        ("llama", {"curve": {"place": "hidden", "num_curve_layers": 3}}, "num_curve_layers"),
    ],
)
def test_what_cannot_be_a_diffusion_model_is_told(family, given, told):
    with pytest.raises(ValueError, match=told):
        MdlmForMaskedDiffusion.from_causal(make_backbone(family), **{"mask_token_id": MASK, **given})
    with pytest.raises(ValueError, match="with_curve"):
        MdlmForMaskedDiffusion.from_causal(make_from_causal(), mask_token_id=MASK)


def test_a_mask_token_that_ends_texts_and_an_attention_without_masks_are_refused():
    alibi = AutoModelForCausalLM.from_config(FalconConfig(**SMALL, alibi=True))
    with pytest.raises(ValueError, match="do not attend as a mask says"):
        MdlmForMaskedDiffusion.from_causal(alibi, mask_token_id=MASK)
    base = make_backbone("llama")
    base.generation_config.eos_token_id = [0, MASK]
    with pytest.raises(ValueError, match="eos_token_id"):
        MdlmForMaskedDiffusion.from_causal(base, mask_token_id=MASK)
    model = make_from_causal()
    model.backbone.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="set_attn_implementation"):
        model(clean_ids(1, 5))


def test_a_causal_checkpoint_is_made_into_one_by_from_causal(tmp_path):
    make_backbone("gpt2").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="from_causal"):
        MdlmForMaskedDiffusion.from_pretrained(tmp_path)
    model = MdlmForMaskedDiffusion.from_causal(tmp_path, mask_token_id=MASK, dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="modulation"):
        model.to_published()
