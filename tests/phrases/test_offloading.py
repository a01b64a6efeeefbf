"""A phrase encoder on a base model whose weights accelerate keeps elsewhere."""

import pytest
import torch
from accelerate import cpu_offload

from hf_targets.phrases.model import DynamicVocabForCausalLM
from tests.tiny_models import make_backbone, make_dynamic_model, make_vocabulary
from tests.trainer_runs import assert_same

CPU = torch.device("cpu")


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_an_encoder_made_on_an_offloaded_base_is_real_and_fits_its_weights(family):
    whole, offloaded = make_backbone(family), make_backbone(family)
    cpu_offload(offloaded, execution_device=CPU)
    encoders = []
    for base in (whole, offloaded):
        torch.manual_seed(1)
        encoders.append(DynamicVocabForCausalLM.from_base(base, make_backbone(family, 2)).phrase_encoder.state_dict())
    assert not any(tensor.is_meta for tensor in encoders[1].values())
    assert_same(encoders[1], encoders[0])


def test_an_encoder_made_on_a_base_with_a_part_on_disk_is_saved_with_all_of_it(tmp_path):
    base = make_backbone("llama")
    base.save_pretrained(tmp_path / "base")
    where = {"device_map": {"model": "disk", "lm_head": "cpu"}, "offload_folder": tmp_path / "offloaded"}
    model = DynamicVocabForCausalLM.from_base(tmp_path / "base", make_backbone("llama", 2), **where)
    assert any(parameter.is_meta for parameter in model.backbone.parameters())
    model.save_pretrained(tmp_path / "model")
    again = DynamicVocabForCausalLM.from_pretrained(tmp_path / "model")
    assert_same(again.backbone.state_dict(), base.state_dict(), rtol=0, atol=0)


def test_the_phrase_encoder_cannot_begin_as_a_copy_of_weights_that_are_elsewhere():
    base = make_backbone("gpt2")
    cpu_offload(base, execution_device=CPU)
    with pytest.raises(ValueError, match="weights of GPT2LMHeadModel are offloaded or sharded; give phrase_encoder="):
        DynamicVocabForCausalLM.from_base(base)


def test_an_index_of_an_offloaded_model_is_that_of_the_model():
    vocabulary = make_vocabulary()
    model, offloaded = make_dynamic_model("llama"), make_dynamic_model("llama")
    cpu_offload(offloaded, execution_device=CPU)
    assert offloaded.phrase_fingerprint(vocabulary) == model.phrase_fingerprint(vocabulary)
