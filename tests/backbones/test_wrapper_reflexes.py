"""What a user of Transformers does by reflex with a model around a backbone has the backbone's effect."""

import copy

import pytest
import torch
from peft import PrefixTuningConfig, get_peft_model
from transformers import AutoModel, AutoModelForCausalLM

from hf_targets import DynamicVocabForCausalLM, MultiTokenForCausalLM
from hf_targets.maths.losses import IGNORED
from tests.tiny_models import FAMILIES, KINDS, make_any, make_backbone, new_part, token_ids, training_inputs
from tests.trainer_runs import assert_same, weights

SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
SIX = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
families = pytest.mark.parametrize("family", FAMILIES)
kinds = pytest.mark.parametrize("kind", ["difference", "phrases"])
wrappers = pytest.mark.parametrize("kind", [MultiTokenForCausalLM, DynamicVocabForCausalLM])


@families
@kinds
def test_a_configuration_answers_for_its_backbone(kind, family):
    model = make_any(family, kind)
    text = model.backbone.config.get_text_config()
    assert {name: getattr(model.config, name) for name in SIZES} == {name: getattr(text, name) for name in SIZES}
    assert model.config.to_dict()["hidden_size"] == text.hidden_size
    assert "hidden_size" not in model.config.to_diff_dict()
    assert not hasattr(model.config, "no_such_field")
    model.config.use_cache = False
    assert text.use_cache is False and copy.deepcopy(model.config).use_cache is False
    assert type(model.config).from_dict(model.config.to_dict()).to_dict() == model.config.to_dict()


@families
@kinds
@pytest.mark.parametrize("loader", ["own", "auto"])
def test_from_pretrained_sets_what_the_backbone_decides(kind, family, loader, tmp_path):
    model = make_any(family, kind)
    model.save_pretrained(tmp_path)
    cls = type(model) if loader == "own" else AutoModelForCausalLM
    loaded = cls.from_pretrained(tmp_path, use_cache=False, pad_token_id=3, output_hidden_states=True)
    output = loaded(token_ids(2, 8))
    assert output.past_key_values is None and output.hidden_states is not None
    assert loaded.config.pad_token_id == loaded.backbone.config.get_text_config().pad_token_id == 3
    if loader == "own":
        assert loaded.generation_config.pad_token_id == 3
    loaded = cls.from_pretrained(tmp_path, dtype=torch.bfloat16, attn_implementation="eager")
    assert loaded.dtype == torch.bfloat16 and loaded.backbone.config._attn_implementation == "eager"
    if family != "reformer":
        assert cls.from_pretrained(tmp_path, output_attentions=True)(token_ids(1, 4)).attentions is not None


def test_a_field_of_ours_goes_together_with_one_of_the_backbones(tmp_path):
    make_any("gpt2", "difference").save_pretrained(tmp_path)
    loaded = MultiTokenForCausalLM.from_pretrained(tmp_path, use_cache=False, ensemble_weight=0.3)
    assert loaded.config.ensemble_weight == 0.3 and loaded.backbone.config.use_cache is False


@wrappers
def test_from_base_passes_on_how_a_model_is_loaded(kind, tmp_path):
    make_backbone("gpt2").save_pretrained(tmp_path)
    model = kind.from_base(tmp_path, dtype=torch.bfloat16, attn_implementation="eager", device_map="cpu")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.backbone.config._attn_implementation == "eager"
    with pytest.raises(ValueError, match="dtype: this says how a model is loaded, and the base is a model already"):
        kind.from_base(make_backbone("gpt2"), dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"no such field of \w+Config: dtipe; there are"):
        kind.from_base(tmp_path, dtipe=torch.bfloat16)


@families
@kinds
@pytest.mark.usefixtures("clear_choices")
def test_generation_begins_from_embeddings_where_the_backbone_does(kind, family):
    model, ids = make_any(family, kind).double(), token_ids(2, 5)
    embeds = model.get_input_embeddings()(ids)
    if family == "reformer":
        with pytest.raises(ValueError, match="ReformerModelWithLMHead does not generate from inputs_embeds"):
            model.generate(inputs_embeds=embeds, **SIX)
        return
    expected = model.backbone.generate(inputs_embeds=embeds, **SIX)
    assert torch.equal(model.generate(inputs_embeds=embeds, **SIX), expected)
    if kind == "difference":
        assert torch.equal(model.generate(inputs_embeds=embeds[:1], draft_tokens=2, **SIX), expected[:1])
        with pytest.raises(ValueError, match="give input_ids in place of inputs_embeds"):
            model.generate(inputs_embeds=embeds, draft_tokens=2, **SIX)


@families
@kinds
def test_segments_are_read_where_the_backbone_reads_them(kind, family):
    model, ids = make_any(family, kind), token_ids(2, 8)
    segments = torch.arange(8).expand(2, 8) // 4
    if family in ("gpt2", "gpt_neo"):
        expected = model.backbone(ids, token_type_ids=segments).logits
        assert torch.equal(model(ids, token_type_ids=segments).logits, expected)
        generated = model.backbone.generate(ids, token_type_ids=segments, **SIX)
        assert torch.equal(model.generate(ids, token_type_ids=segments, **SIX), generated)
    else:
        with pytest.raises(ValueError, match="does not generate from token_type_ids; leave it out"):
            model.generate(ids, token_type_ids=segments, **SIX)


@pytest.mark.parametrize("kind", KINDS)
def test_shifted_labels_give_the_loss_of_those_that_are_not(kind):
    model, ids = make_any("llama", kind), token_ids(2, 9)
    labels = ids.masked_fill(torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) < 0.3, IGNORED)
    shifted = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    expected = model(ids, labels=labels)
    for given in ({"shift_labels": shifted}, {"shift_labels": shifted, "labels": ids}):
        output = model(ids, **given)
        assert output.loss == expected.loss and output.loss_parts == expected.loss_parts
    with pytest.raises(ValueError, match=r"shift_labels must have the shape of input_ids, \(2, 9\), got \(2, 8\)"):
        model(ids, shift_labels=shifted[:, 1:])
    with pytest.raises(ValueError, match="shift_labels must be in"):
        model(ids, shift_labels=shifted.masked_fill(shifted == IGNORED, 50_000))


@wrappers
def test_whether_a_cache_is_dynamic_can_be_asked_of_the_class_and_the_model(kind):
    assert kind._supports_default_dynamic_cache() is True
    name = "phrases" if kind is DynamicVocabForCausalLM else "difference"
    for family in ("gpt2", "reformer"):
        model = make_any(family, name)
        assert model._supports_default_dynamic_cache() is model.backbone._supports_default_dynamic_cache()


@families
@kinds
def test_the_base_model_makes_the_hidden_states_that_the_output_matrix_reads(kind, family):
    model, ids = make_any(family, kind), token_ids(2, 8)
    hidden = model.base_model(ids)[0]
    assert torch.equal(model.get_output_embeddings()(hidden), model.backbone(ids).logits)


@kinds
def test_prefix_tuning_finds_the_sizes_of_the_backbone(kind):
    model = make_any("llama", kind)
    tuned = get_peft_model(model, PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    output = tuned(**training_inputs("difference"))
    output.loss.backward()
    assert tuned.peft_config["default"].num_layers == 2
    trained = [parameter for parameter in tuned.parameters() if parameter.requires_grad]
    assert trained and all(parameter.grad is not None for parameter in trained)


@families
@kinds
def test_auto_model_loads_the_backbone_without_its_output_matrix(kind, family, tmp_path):
    model, ids = make_any(family, kind), token_ids(2, 8)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert type(loaded) is type(model.base_model)
    assert_same(weights(loaded), weights(model.base_model), rtol=0, atol=0)
    torch.testing.assert_close(loaded(ids)[0], model.base_model(ids)[0])
    assert AutoModel.from_pretrained(tmp_path, dtype=torch.bfloat16, use_cache=False).dtype == torch.bfloat16
    assert type(AutoModel.from_config(model.config)) is type(loaded)


@kinds
def test_a_copy_is_a_model_of_its_own(kind):
    model, ids = make_any("gpt2", kind), token_ids(2, 6)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        next(new_part(twin).parameters()).add_(1.0)
        twin.get_output_embeddings().weight.add_(1.0)
    assert torch.equal(model(ids).logits, make_any("gpt2", kind)(ids).logits)


@kinds
def test_a_configuration_takes_its_backbones_fields_as_it_is_made(kind):
    config = make_any("llama", kind).config
    made = type(config)(**{**config.to_dict(), "use_cache": False, "max_position_embeddings": 7})
    assert made.backbone.use_cache is False and made.backbone.max_position_embeddings == 7
    values = config.to_dict()
    values["backbone"]["num_hidden_layers"] = 1
    assert type(config).from_dict(values).num_hidden_layers == 1


@pytest.mark.parametrize("cls", [MultiTokenForCausalLM, AutoModelForCausalLM])
def test_heads_alone_load_their_base_with_what_it_was_given(cls, tmp_path):
    make_backbone("llama").save_pretrained(tmp_path / "base")
    MultiTokenForCausalLM.from_base(tmp_path / "base").save_pretrained(tmp_path / "heads", heads_only=True)
    given = {"use_cache": False, "pad_token_id": 3, "output_hidden_states": True, "attn_implementation": "eager"}
    model = cls.from_pretrained(tmp_path / "heads", **given)
    output = model(token_ids(1, 4))
    assert output.past_key_values is None and output.hidden_states is not None
    assert model.config.pad_token_id == 3 and model.backbone.config._attn_implementation == "eager"


def test_the_backbone_of_a_loaded_model_generates_as_the_model_does(tmp_path):
    model = make_any("gpt2", "difference")
    model.config.use_cache = False  # as Trainer leaves it
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(tmp_path)
    loaded = MultiTokenForCausalLM.from_pretrained(tmp_path)
    assert loaded.backbone.generation_config.max_new_tokens == 7
    assert loaded.backbone.generation_config.use_cache is not False


def test_segments_beside_a_text_with_phrases_are_refused():
    model, batch = make_any("gpt2", "phrases"), training_inputs("phrases")
    with pytest.raises(ValueError, match="token_type_ids are of the text in tokens"):
        model(**batch, token_type_ids=torch.zeros_like(batch["input_ids"]))
