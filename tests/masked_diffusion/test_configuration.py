import copy
import json

import pytest
from transformers import AutoConfig

from hf_targets.curves.configuration import CurveConfig
from hf_targets.masked_diffusion.configuration import MdlmConfig

PUBLISHED = {  # config.json of kuleshov-group/mdlm-owt, but for what Transformers adds
    "model_type": "mdlm",
    "vocab_size": 50258,
    "model_length": 1024,
    "hidden_dim": 768,
    "cond_dim": 128,
    "n_blocks": 12,
    "n_heads": 12,
    "dropout": 0.1,
    "time_conditioning": False,
}


def test_the_mask_is_the_last_id_unless_it_is_given():
    assert MdlmConfig().mask_token_id == 50257
    assert MdlmConfig(vocab_size=30522, mask_token_id=103).mask_token_id == 103
    assert MdlmConfig(vocab_size=30522, mask_token_id=0).mask_token_id == 0


@pytest.mark.parametrize("curve", [None, {"num_curves": 3, "place": "hidden", "num_curve_layers": 2, "margin": 0.0}])
def test_a_configuration_survives_json_and_copies(curve, tmp_path):
    config = MdlmConfig(vocab_size=99, mask_token_id=4, dropout=0.0, curve=curve, pad_token_id=1)
    config.save_pretrained(tmp_path)
    copies = [
        AutoConfig.from_pretrained(tmp_path),
        MdlmConfig.from_dict(json.loads(config.to_json_string(use_diff=False))),
        MdlmConfig.from_dict(config.to_diff_dict()),
        copy.deepcopy(config),
    ]
    for again in copies:
        assert isinstance(again, MdlmConfig)
        assert (again.vocab_size, again.mask_token_id, again.dropout, again.pad_token_id) == (99, 4, 0.0, 1)
        if curve is None:
            assert again.curve is None
        else:
            assert isinstance(again.curve, CurveConfig)
            assert again.curve.to_dict() == CurveConfig(**curve).to_dict()
    copies[-1].vocab_size = 5
    assert config.vocab_size == 99


def test_a_curve_is_a_configuration_of_its_own_or_its_fields():
    given = CurveConfig(degree=3)
    config = MdlmConfig(curve=given)
    assert config.curve.to_dict() == given.to_dict()
    given.degree = 5  # of a configuration that was made before nothing changes
    assert config.curve.degree == 3
    given.degree = 3
    assert MdlmConfig(curve={"degree": 3}).curve.to_dict() == given.to_dict()
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
        ({"num_diffusion_steps": 0}, "num_diffusion_steps"),
        ({"folded": True, "time_conditioning": True}, "time_conditioning"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        (PUBLISHED, "from_published"),
    ],
)
def test_fields_out_of_range_are_refused(fields, word):
    with pytest.raises(ValueError, match=word):
        MdlmConfig(**fields)
