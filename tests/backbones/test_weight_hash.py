import pytest
import torch
from accelerate import cpu_offload
from peft import LoraConfig, get_peft_model

from hf_targets.backbones.weight_hash import weight_hash
from tests.programs import run_program
from tests.tiny_backbones import make_backbone
from tests.tiny_seq2seq import make_pair_backbone


def test_the_hash_is_the_same_in_another_process_and_after_saving(tmp_path):
    model = make_backbone("gpt2")
    model.save_pretrained(tmp_path)
    code = (
        "import sys; from transformers import AutoModelForCausalLM as A; from hf_targets.backbones.weight_hash import "
        "weight_hash as h; print(h(A.from_pretrained(sys.argv[1], use_cache=False)))"
    )
    told = run_program(code, tmp_path)
    assert told.stdout.strip() == weight_hash(model), told.stderr


def test_each_weight_and_each_setting_counts():
    model = make_backbone("llama")
    found = {weight_hash(model)}
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.flatten()[-1] += 1.0
        found.add(weight_hash(model))
    model.config.rms_norm_eps *= 2
    found.add(weight_hash(model))
    assert len(found) == len(list(model.parameters())) + 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_another_type_is_another_model_unless_numbers_are_rounded(dtype):
    model = make_backbone("llama")
    exact, rounded = weight_hash(model), weight_hash(model, rounded_to=torch.bfloat16)
    model.to(dtype)
    assert weight_hash(model) != exact
    assert weight_hash(model, rounded_to=torch.bfloat16) == rounded


def test_adapters_count_while_they_are_on():
    model = make_backbone("llama")
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj"]))
    on = weight_hash(model)
    with adapted.disable_adapter():
        assert weight_hash(model) != on
    assert weight_hash(model) == on


@pytest.mark.parametrize("make", [lambda: make_backbone("llama"), make_pair_backbone])  # Marian has a bias of its own
def test_weights_that_are_offloaded_count_as_well(make):
    model = make()
    before = weight_hash(model)
    cpu_offload(model)
    assert weight_hash(model) == before
