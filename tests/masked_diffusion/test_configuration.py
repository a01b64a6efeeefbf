import pytest

from hf_targets.curves.configuration import CurveConfig
from hf_targets.masked_diffusion.configuration import MdlmConfig


def test_the_mask_is_the_last_id_unless_it_is_given():
    assert MdlmConfig().mask_token_id == 50257
    assert MdlmConfig(vocab_size=30522, mask_token_id=103).mask_token_id == 103
    assert MdlmConfig(vocab_size=30522, mask_token_id=0).mask_token_id == 0


def test_a_curve_is_a_configuration_of_its_own_or_its_fields():
    given = CurveConfig(degree=3)
    assert MdlmConfig(curve={"degree": 3}).curve.to_dict() == MdlmConfig(curve=given).curve.to_dict() == given.to_dict()
    with pytest.raises(ValueError, match="num_curves"):
        MdlmConfig(curve={"num_curves": 0})


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"mask_token_id": 50258}, "mask_token_id"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": 36, "num_attention_heads": 4}, "multiple"),
        ({"dropout": 1.0}, "dropout"),
        ({"noise_schedule": "loglinear"}, "log_linear"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
    ],
)
def test_fields_out_of_range_are_refused(fields, word):
    with pytest.raises(ValueError, match=word):
        MdlmConfig(**fields)
