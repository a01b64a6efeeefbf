"""Heads on a base model whose weights accelerate keeps elsewhere."""

import copy

import pytest
import torch
from accelerate import cpu_offload
from safetensors.torch import load_file

from hf_targets.multitoken.causal import MultiTokenForCausalLM
from hf_targets.multitoken.medusa import save_medusa_for_vllm
from tests.tiny_backbones import make_backbone
from tests.tiny_models import make_drafting_model, token_ids
from tests.trainer_runs import assert_same

CPU = torch.device("cpu")


@pytest.mark.parametrize("rows", [1, 2])
def test_an_offloaded_model_drafts_the_text_of_the_whole_one(rows):
    model, prompts = make_drafting_model("llama"), token_ids(rows, 5)
    plain = model.generate(prompts, max_new_tokens=12, do_sample=False)
    offloaded = copy.deepcopy(model)
    cpu_offload(offloaded, execution_device=CPU)
    for draft_tokens in (3, "auto"):
        drafted = offloaded.generate(prompts, max_new_tokens=12, do_sample=False, draft_tokens=draft_tokens)
        assert torch.equal(drafted, plain)


def test_heads_of_an_offloaded_model_are_saved_alone_and_for_vllm(tmp_path):
    files = []
    for name in ("whole", "offloaded"):
        model = MultiTokenForCausalLM.from_base(make_backbone("llama"), target="embedding", head="medusa")
        model.config.base_model_name_or_path = "base"
        if name == "offloaded":
            cpu_offload(model, execution_device=CPU)
        model.save_pretrained(tmp_path / name, heads_only=True)
        save_medusa_for_vllm(model, tmp_path / f"{name}-vllm")
        saved = (tmp_path / name / "heads.safetensors", tmp_path / f"{name}-vllm" / "model.safetensors")
        files.append([load_file(file) for file in saved])
    for ours, theirs in zip(*files, strict=True):
        assert_same(ours, theirs, rtol=0, atol=0)
