"""Which heads are not written for vLLM, as it could not hold them."""

import re

import pytest

from hf_targets.multitoken.medusa import save_medusa_for_vllm
from hf_targets.training.lora import add_lora
from tests.tiny_models import make_model


@pytest.mark.parametrize(
    ("family", "fields", "told"),
    [
        ("gpt2", {"head": "mlp", "target": "embedding"}, "got head='mlp' and target='embedding'; train such heads"),
        ("gpt2", {"head": "medusa", "target": "difference"}, "got head='medusa' and target='difference'"),
        ("phi", {"head": "medusa", "target": "embedding"}, "share an output bias, and vLLM's Medusa has none"),
    ],
)
def test_heads_that_vllm_cannot_hold_are_not_written(family, fields, told, tmp_path):
    with pytest.raises(ValueError, match=re.escape(told)):
        save_medusa_for_vllm(make_model(family, **fields), tmp_path / "vllm")
    assert not (tmp_path / "vllm").exists()


def test_heads_that_were_trained_beside_adapters_are_not_written(tmp_path):
    tuned = add_lora(make_model("gpt2", head="medusa", target="embedding"), 2)
    for model in (tuned, tuned.get_base_model()):
        with pytest.raises(
            ValueError, match=r"vLLM loads heads of a model without adapters, .*: model.merge_and_unload"
        ):
            save_medusa_for_vllm(model, tmp_path / "vllm")
    assert not (tmp_path / "vllm").exists()
    save_medusa_for_vllm(tuned.merge_and_unload(), tmp_path / "vllm")
