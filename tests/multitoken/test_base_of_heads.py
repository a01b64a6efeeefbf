"""Heads saved alone know their base model: another one, or one that was trained since, is refused."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hf_targets import MultiTokenForCausalLM
from hf_targets.backbones import wrapping
from tests.tiny_models import make_backbone, token_ids

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture
def base_folder(tmp_path):
    make_backbone("llama").save_pretrained(tmp_path / "base", max_shard_size="20KB")
    return tmp_path / "base"


@pytest.fixture
def heads_folder(base_folder, tmp_path):
    MultiTokenForCausalLM.from_base(base_folder, ngram_size=3).save_pretrained(tmp_path / "heads", heads_only=True)
    return tmp_path / "heads"


def take_a_step(model, learning_rate=1e-4):
    """Train everything that takes gradients for one step, as small as fine-tuning's."""
    ids = token_ids(2, 8)
    model.train()(ids, labels=ids).loss.backward()
    torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=learning_rate).step()


@pytest.mark.parametrize("stored", DTYPES, ids=str)
def test_heads_load_with_every_type_that_the_base_is_loaded_with(stored, base_folder, tmp_path):
    AutoModelForCausalLM.from_pretrained(base_folder).to(stored).save_pretrained(base_folder)
    for saved in DTYPES:
        model = MultiTokenForCausalLM.from_base(base_folder, ngram_size=2, backbone_kwargs={"dtype": saved})
        model.save_pretrained(tmp_path / "heads", heads_only=True)
        model.to(torch.bfloat16).save_pretrained(tmp_path / "cast", heads_only=True)
        for folder in (tmp_path / "heads", tmp_path / "cast"):
            for dtype in DTYPES:
                MultiTokenForCausalLM.from_pretrained(folder, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_base_that_was_trained_since_is_refused(dtype, heads_folder, base_folder):
    base = AutoModelForCausalLM.from_pretrained(base_folder)
    take_a_step(base)
    base.save_pretrained(base_folder)
    with pytest.raises(ValueError, match=rf"made for a base model that differs from {base_folder}"):
        MultiTokenForCausalLM.from_pretrained(heads_folder, dtype=dtype)


@pytest.mark.parametrize("trained", ["embed_tokens", "lm_head", "layers.1.mlp.up_proj", "norm"])
def test_a_base_of_which_one_part_was_trained_is_refused(trained, heads_folder, base_folder):
    base = AutoModelForCausalLM.from_pretrained(base_folder)
    with torch.no_grad():
        for name, weight in base.named_parameters():
            if f"{trained}.weight" in name:
                weight.mul_(1.01)
    base.save_pretrained(base_folder)
    with pytest.raises(ValueError, match="differs from"):
        MultiTokenForCausalLM.from_pretrained(heads_folder)


@pytest.mark.parametrize("other", [{"seed": 1}, {"vocab_size": 60}, {"num_hidden_layers": 1}], ids=str)
def test_another_base_is_refused(other, heads_folder, tmp_path):
    make_backbone("llama", **other).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match=rf"differs from {tmp_path / 'other'}"):
        MultiTokenForCausalLM.from_pretrained(heads_folder, base_model_name_or_path=str(tmp_path / "other"))


def test_another_configuration_of_the_same_weights_is_taken(heads_folder, base_folder):
    base = AutoModelForCausalLM.from_pretrained(base_folder)
    base.config.pad_token_id = 7
    base.save_pretrained(base_folder)
    assert MultiTokenForCausalLM.from_pretrained(heads_folder).config.pad_token_id == 7


def test_a_copy_of_the_base_elsewhere_is_taken(heads_folder, base_folder, tmp_path):
    base_folder.rename(tmp_path / "moved")
    again = MultiTokenForCausalLM.from_pretrained(heads_folder, base_model_name_or_path=str(tmp_path / "moved"))
    assert again.config.base_model_name_or_path == str(tmp_path / "moved")


def test_heads_of_a_backbone_that_was_trained_are_not_saved_alone(base_folder, tmp_path):
    model = MultiTokenForCausalLM.from_base(base_folder, ngram_size=3)
    take_a_step(model)
    with pytest.raises(ValueError, match=rf"this one differs from {base_folder}"):
        model.save_pretrained(tmp_path / "heads", heads_only=True)
    assert not (tmp_path / "heads").exists()


def test_heads_trained_on_a_frozen_backbone_are_saved_alone(base_folder, tmp_path):
    model = MultiTokenForCausalLM.from_base(base_folder, ngram_size=3)
    model.backbone.requires_grad_(False)
    take_a_step(model)
    model.save_pretrained(tmp_path / "heads", heads_only=True)
    again = MultiTokenForCausalLM.from_pretrained(tmp_path / "heads")
    assert torch.equal(again.heads[1].inner.weight, model.heads[1].inner.weight)


def test_heads_beside_an_adapter_or_of_a_resized_base_are_not_saved_alone(base_folder, tmp_path):
    model = MultiTokenForCausalLM.from_base(base_folder, ngram_size=3)
    model.resize_token_embeddings(60)
    with pytest.raises(ValueError, match="differs from"):
        model.save_pretrained(tmp_path / "heads", heads_only=True)
    model = MultiTokenForCausalLM.from_base(base_folder, ngram_size=3)
    get_peft_model(model, LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(ValueError, match="differs from"):
        model.save_pretrained(tmp_path / "heads", heads_only=True)


@pytest.mark.parametrize("trained", [False, True])
def test_a_model_that_was_loaded_whole_is_compared_with_its_base(trained, base_folder, tmp_path):
    model = MultiTokenForCausalLM.from_base(base_folder, ngram_size=3)
    if trained:
        take_a_step(model)
    model.save_pretrained(tmp_path / "whole")
    model = MultiTokenForCausalLM.from_pretrained(tmp_path / "whole")
    if trained:
        with pytest.raises(ValueError, match="saves no backbone, and this one differs from"):
            model.save_pretrained(tmp_path / "heads", heads_only=True)
    else:
        model.save_pretrained(tmp_path / "heads", heads_only=True)
        MultiTokenForCausalLM.from_pretrained(tmp_path / "heads")


def test_heads_put_on_a_backbone_with_heads_know_the_backbone(base_folder, tmp_path):
    MultiTokenForCausalLM.from_base(base_folder, ngram_size=2).save_pretrained(tmp_path / "first")
    backbone = MultiTokenForCausalLM.from_pretrained(tmp_path / "first").backbone
    model = MultiTokenForCausalLM.from_base(backbone, ngram_size=3, base_model_name_or_path=str(tmp_path / "first"))
    model.save_pretrained(tmp_path / "second", heads_only=True)
    assert len(MultiTokenForCausalLM.from_pretrained(tmp_path / "second").heads) == 2


def test_heads_without_a_hash_of_their_base_load(heads_folder):
    file = heads_folder / "heads.safetensors"
    save_file(load_file(file), file, metadata={"format": "pt"})
    MultiTokenForCausalLM.from_pretrained(heads_folder)


@pytest.mark.parametrize("name", [None, ""])
def test_heads_that_name_no_base_model_ask_nobody_for_it(name, heads_folder, monkeypatch):
    file = heads_folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": name}))
    monkeypatch.setattr(wrapping.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("asked"))
    with pytest.raises(ValueError, match=rf"{heads_folder} holds only heads, and its config.json names no base model"):
        MultiTokenForCausalLM.from_pretrained(heads_folder)
