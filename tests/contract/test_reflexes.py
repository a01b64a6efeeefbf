"""What a user of Transformers does without thinking works with every model, or is refused in words."""

import copy

import pytest
import torch
from peft import PrefixTuningConfig, get_peft_model
from transformers import AutoModel, PreTrainedModel

from hf_targets.backbones.output_matrix import OutputMap
from hf_targets.maths.losses import IGNORED
from tests.memory import realigned
from tests.model_cases import (
    CASES,
    ONE_OF_A_KIND,
    every_class,
    every_kind,
    every_model,
    every_wrapper_class,
    every_writing_wrapper_class,
    models_that_owe,
    parametrized,
)
from tests.tiny_models import VOCAB, make_any, make_vocabulary, token_ids
from tests.trainer_runs import assert_same, weights

every_wrapping_kind = parametrized(name for name in ONE_OF_A_KIND if CASES[name].wraps)
every_writing_wrapper = parametrized(
    name for name in ONE_OF_A_KIND if not CASES[name].lacks.keys() & {"the logits of what it wraps", "generation"}
)
SIX = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}


def without_cache(case):
    """Return the argument of `from_pretrained` that a configuration with a cache takes."""
    return {} if "use_cache" in case.lacks else {"use_cache": False}


@every_model
def test_programs_read_the_sizes_of_the_model_from_its_configuration(case):
    config = case.make().config
    assert {name: getattr(config, name) for name in case.sizes} == case.sizes
    assert config.to_dict()["hidden_size"] == case.sizes["hidden_size"]
    assert not hasattr(config, "no_such_field")


@every_kind
def test_from_pretrained_takes_the_fields_that_it_takes_for_any_model(case, tmp_path):
    model, ids, cls = case.make(), token_ids(2, 8), case.auto
    model.save_pretrained(tmp_path)
    fields = {"pad_token_id": 3, "output_hidden_states": True, **without_cache(case), **case.settings}
    loaded = cls.from_pretrained(tmp_path, **fields)
    output = loaded(**case.reading(ids))
    assert output.get("past_key_values") is None and output[f"{case.prefix}hidden_states"] is not None
    assert loaded.config.pad_token_id == loaded.config.get_text_config().pad_token_id == 3
    assert {name: getattr(loaded.config, name) for name in case.settings} == case.settings
    loaded = cls.from_pretrained(tmp_path, dtype=torch.bfloat16, attn_implementation="eager")
    assert loaded.dtype == torch.bfloat16 and loaded.config._attn_implementation == "eager"
    parts = [part for part in loaded.modules() if isinstance(part, PreTrainedModel)]
    assert {part.config._attn_implementation for part in parts} == {"eager"}


@every_class
def test_a_models_own_class_takes_these_fields_too(case, tmp_path):
    model, given = case.make(), case.reading(token_ids(2, 8))
    model.save_pretrained(tmp_path)
    fields = {"pad_token_id": 3, "output_attentions": True, "attn_implementation": "eager", **without_cache(case)}
    loaded = type(model).from_pretrained(tmp_path, **fields)
    assert loaded.config.pad_token_id == 3
    assert not hasattr(model, "generation_config") or loaded.generation_config.pad_token_id == 3
    assert "attentions" in case.lacks or loaded(**given)[f"{case.prefix}attentions"]


@every_class
def test_attention_without_weights_returns_none_of_them_and_changes_nothing(case):
    model, given = case.make(), case.reading(token_ids(2, 8))
    if "attentions" not in case.lacks:
        model.set_attn_implementation("sdpa")
        output = model(**given, output_attentions=True)
        assert output[f"{case.prefix}attentions"] == () and torch.equal(output.logits, model(**given).logits)


@every_kind
def test_hidden_states_come_from_auto_model_too(case, tmp_path):
    model, ids = case.make(), token_ids(2, 8)
    model.save_pretrained(tmp_path)
    loaded = realigned(AutoModel.from_pretrained(tmp_path, **without_cache(case)))
    torch.testing.assert_close(loaded(**case.source_alone(ids))[0], case.hidden(model, ids))
    assert type(AutoModel.from_config(model.config)) is type(loaded)


@every_wrapper_class
def test_auto_model_loads_the_backbone_without_its_output_matrix(case, tmp_path):
    model, ids = case.make(), token_ids(2, 8)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert type(loaded) is type(model.base_model)
    assert_same(weights(loaded), weights(model.base_model), rtol=0, atol=0)
    transformed = "generation" in case.lacks  # a masked model has a transform before its output matrix
    hidden = model(ids, output_last_hidden_state=True).last_hidden_state if transformed else case.hidden(model, ids)
    logits = OutputMap.of(model.backbone)(hidden)
    assert torch.equal(logits, model.backbone(**case.reading(ids)).logits)


@models_that_owe("resizing", ONE_OF_A_KIND)
def test_a_vocabulary_grows_and_the_old_tokens_are_predicted_as_before(case, tmp_path):
    model, ids = case.make(), token_ids(2, 8)
    before = model(**case.reading(ids)).logits[..., : VOCAB - 1].log_softmax(-1)
    model.resize_token_embeddings(VOCAB + 5)
    assert model.config.vocab_size == model.vocab_size == VOCAB + 5
    after = model(**case.reading(ids)).logits
    assert after.shape[-1] == VOCAB + 5
    torch.testing.assert_close(after[..., : VOCAB - 1].log_softmax(-1), before, rtol=1e-4, atol=1e-4)
    ids[0, 0] = VOCAB + 4
    model.save_pretrained(tmp_path)
    again = realigned(case.auto.from_pretrained(tmp_path))
    assert torch.equal(again(**case.reading(ids)).logits, realigned(model)(**case.reading(ids)).logits)


def assert_refused(case, argument, *calls):
    """Assert that calls refuse an argument as the case says; return whether it says so."""
    if argument in case.refuses:
        for call in calls:
            with pytest.raises((TypeError, ValueError), match=case.refuses[argument]):
                call()
    return argument in case.refuses


@every_writing_wrapper
@pytest.mark.usefixtures("clear_choices")
def test_generation_begins_from_embeddings_where_what_is_wrapped_does(case):
    model, ids = case.make().double(), token_ids(2, 5)
    embeds = model.get_input_embeddings()(ids)
    if not assert_refused(case, "inputs_embeds", lambda: model.generate(inputs_embeds=embeds)):
        expected = model.backbone.generate(inputs_embeds=embeds, **SIX)
        assert torch.equal(model.generate(inputs_embeds=embeds, **SIX), expected)


@models_that_owe("the logits of what it wraps", ONE_OF_A_KIND)
def test_segments_are_read_where_what_is_wrapped_reads_them(case):
    model, ids = case.make(), token_ids(2, 8)
    segments = torch.arange(8).expand(2, 8) // 4
    read = model if "generation" in case.lacks else model.generate
    if not assert_refused(case, "token_type_ids", lambda: read(ids, token_type_ids=segments)):
        expected = model.backbone(ids, token_type_ids=segments).logits
        assert torch.equal(model(ids, token_type_ids=segments).logits, expected)
        if "generation" in case.lacks:
            return
        generated = model.backbone.generate(ids, token_type_ids=segments, **SIX)
        assert torch.equal(model.generate(ids, token_type_ids=segments, **SIX), generated)


@every_kind
def test_shifted_labels_give_the_loss_of_those_that_are_not(case):
    model, ids = case.make(), token_ids(2, 16)
    labels = ids.masked_fill(torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) < 0.3, IGNORED)
    shifted = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    if assert_refused(case, "shift_labels", lambda: model(**case.reading(ids), shift_labels=shifted)):
        return
    expected = model(ids, labels=labels)
    for given in ({"shift_labels": shifted}, {"shift_labels": shifted, "labels": ids}):
        output = model(ids, **given)
        assert output.loss == expected.loss and output.loss_parts == expected.loss_parts
    with pytest.raises(ValueError, match="shift_labels must have the shape of input_ids"):
        model(ids, shift_labels=shifted[:, 1:])
    with pytest.raises(ValueError, match="shift_labels must be in"):
        model(ids, shift_labels=shifted.masked_fill(shifted == IGNORED, 50_000))


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("difference", {"ensemble_weight": 0.3}),
        ("difference", {"draft_tokens": "auto"}),
        ("phrases", {"phrases": make_vocabulary(), "phrase_bias": 5.0}),
    ],
)
def test_custom_generate_of_a_folder_may_call_generate_again(kind, how, tmp_path, monkeypatch):
    (tmp_path / "custom_generate").mkdir()
    program = "def generate(model, inputs=None, **given):\n    return model.generate(inputs, **given)\n"
    (tmp_path / "custom_generate" / "generate.py").write_text(program)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    model, ids = make_any("gpt2", kind), token_ids(2, 5)
    again = model.generate(ids, custom_generate=str(tmp_path), trust_remote_code=True, **how, **SIX)
    assert torch.equal(again, model.generate(ids, **how, **SIX))


@every_wrapping_kind
def test_a_configuration_answers_for_its_backbone(case):
    model = case.make()
    config, text = model.config, model.backbone.config.get_text_config()
    assert "hidden_size" not in config.to_diff_dict()
    if "use_cache" in case.lacks:
        return
    config.use_cache = False
    assert text.use_cache is False and copy.deepcopy(config).use_cache is False
    assert type(config).from_dict(config.to_dict()).to_dict() == config.to_dict()
    values = config.to_dict()
    assert type(config)(**{**values, "use_cache": False}).backbone.use_cache is False
    values["backbone"]["vocab_size"] = 70
    assert type(config).from_dict(values).vocab_size == 70


@every_wrapper_class
def test_a_loaded_configuration_is_that_of_its_parts(case, tmp_path):
    case.make().save_pretrained(tmp_path)
    again = case.auto.from_pretrained(tmp_path)
    assert again.config.backbone is again.backbone.config


@every_writing_wrapper_class
def test_whether_a_cache_is_dynamic_can_be_asked_of_the_class_and_the_model(case):
    model = case.make()
    assert type(model)._supports_default_dynamic_cache() is True
    assert model._supports_default_dynamic_cache() is model.backbone._supports_default_dynamic_cache()


@every_wrapper_class
def test_from_base_passes_on_how_a_model_is_loaded(case, tmp_path):
    cls = case.model_class
    case.wraps().save_pretrained(tmp_path)
    model = cls.from_base(tmp_path, dtype=torch.bfloat16, attn_implementation="eager", device_map="cpu")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.backbone.config._attn_implementation == "eager"
    with pytest.raises(ValueError, match="dtype: this says how a model is loaded"):
        cls.from_base(case.wraps(), dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"no such field of \w+Config: dtipe; there are"):
        cls.from_base(tmp_path, dtipe=torch.bfloat16)


@every_writing_wrapper_class
def test_prefix_tuning_finds_the_sizes_of_the_backbone(case):
    task = "SEQ_2_SEQ_LM" if case.source else "CAUSAL_LM"
    tuned = get_peft_model(case.make(), PrefixTuningConfig(task_type=task, num_virtual_tokens=3))
    tuned(**case.text(16)).loss.backward()
    assert tuned.peft_config["default"].num_layers == 2
    trained = [parameter for parameter in tuned.parameters() if parameter.requires_grad]
    assert trained and all(parameter.grad is not None for parameter in trained)


@every_writing_wrapper_class
def test_the_backbone_of_a_loaded_model_generates_as_the_model_does(case, tmp_path):
    model = case.make()
    model.config.use_cache = False  # as Trainer leaves it
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.backbone.generation_config.max_new_tokens == 7
    assert loaded.backbone.generation_config.use_cache is not False


@every_class
def test_a_count_of_labels_without_labels_is_refused(case):
    with pytest.raises(ValueError, match="num_items_in_batch needs labels"):
        case.make()(**case.source_alone(token_ids(2, 8)), num_items_in_batch=3)
