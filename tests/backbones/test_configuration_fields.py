"""Every field of every configuration of ours takes values of the type that it declares, and no others."""

import json
from dataclasses import fields

import pytest

from hf_targets import TARGETS, CurveConfig, DifformerConfig, MdlmConfig, MultiTokenConfig
from hf_targets.auto import models_of

OF_MODELS = tuple(dict.fromkeys(model.config_class for _, model, _ in models_of(TARGETS)))
CONFIGURATIONS = (CurveConfig, *OF_MODELS)
FIELDS = [
    (cls, field.name)
    for cls in CONFIGURATIONS
    for field in fields(cls)
    if field.name in cls.__annotations__
    and field.name not in ("keys_to_ignore_at_inference", "time_frequencies", "layers", "tokenizers")
]


@pytest.mark.parametrize(("cls", "name"), FIELDS, ids=[f"{cls.__name__}-{name}" for cls, name in FIELDS])
def test_a_value_of_another_type_is_refused_with_the_field_and_the_value(cls, name):
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got \[1, 2\]$"):
        cls(**{name: [1, 2]})


@pytest.mark.parametrize("cls", [MultiTokenConfig, DifformerConfig])
def test_fields_given_beside_a_saved_configuration_are_checked_and_converted_as_if_they_stood_there(cls, tmp_path):
    cls().save_pretrained(tmp_path)
    for _, name in [field for field in FIELDS if field[0] is cls]:
        with pytest.raises(ValueError, match=rf"^{name} must be .*, got \[1, 2\]$"):
            cls.from_pretrained(tmp_path, **{name: [1, 2]})
    changed, left = cls.from_pretrained(tmp_path, pad_token_id=3, unknown=1, return_unused_kwargs=True)
    assert changed.pad_token_id == 3 and left == {"unknown": 1}
    others = [name for _, name in FIELDS if name in changed.to_dict() and name not in ("backbone", "pad_token_id")]
    assert all(changed.to_dict()[name] == cls().to_dict()[name] for name in others if name in cls().to_dict())


def test_given_fields_are_checked_together_under_their_other_names_and_merged_into_dictionaries(tmp_path):
    DifformerConfig(multitoken={"ngram_size": 3}, curve={"degree": 2}).save_pretrained(tmp_path)
    config = DifformerConfig.from_pretrained(tmp_path, multitoken={"loss_weight": 0.5}, d_model=64, curve={"margin": 0})
    assert (config.multitoken["ngram_size"], config.multitoken["loss_weight"], config.hidden_size) == (3, 0.5, 64)
    assert isinstance(config.curve, CurveConfig) and (config.curve.degree, config.curve.margin) == (2, 0)
    assert DifformerConfig.from_pretrained(tmp_path, multitoken=None).multitoken is None
    with pytest.raises(ValueError, match="clip_noise needs noise_schedule='continuous'"):
        DifformerConfig.from_pretrained(tmp_path, clip_noise=True)
    assert DifformerConfig.from_pretrained(tmp_path, clip_noise=True, noise_schedule="continuous").clip_noise


@pytest.mark.parametrize("given", [{"cond_dim": True}, {"noise_schedule": "x"}])
def test_truth_values_and_other_words_than_those_named_are_refused(given):
    with pytest.raises(ValueError, match=next(iter(given))):
        MdlmConfig(**given)


def test_an_integer_is_a_number():
    assert MdlmConfig(dropout=0).dropout == 0


@pytest.mark.parametrize("cls", CONFIGURATIONS)
def test_the_defaults_are_of_their_types_and_come_back_from_json(cls):
    config = cls()
    assert cls.from_dict(json.loads(config.to_json_string(use_diff=False))).to_dict() == config.to_dict()


def test_fields_that_a_subclass_adds_are_checked_too():
    class Wider(MdlmConfig):
        width: int = 3

    assert Wider(width=4).width == 4
    with pytest.raises(ValueError, match="width must be an integer, got 'four'"):
        Wider(width="four")
    with pytest.raises(ValueError, match="hidden_size must be an integer"):
        Wider(hidden_size="768")
