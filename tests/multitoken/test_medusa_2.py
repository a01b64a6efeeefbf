"""Medusa-2 publishes whole models, trained with their heads: the error says so, and how to load the heads."""

import json
import re

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from hf_targets import load_medusa_heads
from tests.tiny_models import make_backbone

PREFIX = "medusa_head."


@pytest.fixture
def whole():
    """Return the tensors of a model with two heads."""
    tensors = {name: tensor.clone() for name, tensor in make_backbone("llama").state_dict().items()}
    for h in range(2):
        tensors[f"{PREFIX}{h}.0.linear.weight"] = torch.randn(32, 32)
        tensors[f"{PREFIX}{h}.0.linear.bias"] = torch.randn(32)
        tensors[f"{PREFIX}{h}.1.weight"] = torch.randn(50, 32)
    return tensors


def write(folder, tensors, file="model.safetensors"):
    """Write a model as Transformers does; an index is of a shard that is not there."""
    config = {**make_backbone("llama").config.to_dict(), "medusa_num_heads": 2, "medusa_num_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    if file.endswith(".json"):
        (folder / file).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "model-00001-of-00001")}))
    elif file.endswith(".bin"):
        torch.save(tensors, folder / file)
    else:
        save_file(tensors, folder / file, metadata={"format": "pt"})
    return folder / file


@pytest.mark.parametrize(
    "file", ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"]
)
def test_a_whole_model_trained_with_its_heads_is_told_what_it_is(file, whole, tmp_path):
    path = write(tmp_path, whole, file)
    for given in (tmp_path, path):
        told = rf"{re.escape(str(path))} is a file of a whole model, trained with its heads \(Medusa-2\).*as base"
        with pytest.raises(ValueError, match=told):
            load_medusa_heads(given)


def test_its_heads_load_as_that_error_says(whole, tmp_path):
    write(tmp_path, whole)
    heads = {name.removeprefix(PREFIX): one for name, one in whole.items() if name.startswith(PREFIX)}
    save_file(heads, tmp_path / "medusa_lm_head.safetensors")
    model, report = load_medusa_heads(tmp_path, AutoModelForCausalLM.from_pretrained(tmp_path))
    assert report.num_heads == 2
    assert torch.equal(model.heads[1].linear.weight, whole[f"{PREFIX}1.0.linear.weight"])
    assert torch.equal(model.backbone.lm_head.weight, whole["lm_head.weight"])


def test_a_whole_model_without_heads_is_told(tmp_path):
    make_backbone("llama").save_pretrained(tmp_path, max_shard_size="20KB")
    with pytest.raises(
        ValueError, match=r"model\.safetensors\.index\.json is a file of a whole model, whose .* no Medusa heads"
    ):
        load_medusa_heads(tmp_path)
