import json

import torch
from transformers import AutoModelForCausalLM

from hf_targets import MultiTokenForCausalLM
from tests.lab.test_card import run_code
from tests.recipes.running import run_recipe


def test_draft_heads_are_trained_on_a_frozen_model_measured_and_benchmarked(finetuned, tmp_path):
    base = finetuned[0] / "wdr-seed0"  # new heads are put on its backbone
    words = ["--block_size", "16", "--prompt_tokens", "4", "--max_new_tokens", "4", "--branches", "2"]
    rows = ["--rows", '{"simple": {"kind": "simple", "dtype": "bfloat16"}, "wdr": {"kind": "wdr"}}']
    given = ["--model_name_or_path", base, "--num_generated", "8", "--num_prompts", "2", *rows, *words]
    printed = run_recipe("tables/train_draft_heads", *given, "--output_dir", tmp_path / "out")
    found = json.loads((tmp_path / "out" / "wdr-seed0" / "results.json").read_text())
    assert found["same_text"] == 1.0 and found["chain_tokens_per_pass_1"] >= 1
    assert "chain tokens per pass 2" in printed
    one = MultiTokenForCausalLM.from_pretrained(tmp_path / "out" / "wdr-seed0")
    assert (one.config.head, one.config.target, one.config.ngram_size) == ("conditional", "difference", 4)
    original = AutoModelForCausalLM.from_pretrained(base).backbone.state_dict()
    assert all(torch.equal(tensor, original[name]) for name, tensor in one.backbone.state_dict().items())
    assert "draft_tokens" in run_code(tmp_path / "out" / "wdr-seed0", tmp_path / "out")

    arguments = ["--heads", tmp_path / "out", "--num_prompts", "2", "--batch_sizes", "1", "2", "--rounds", "1"]
    done = run_recipe("benchmarks/decode", *arguments, *words)
    lines = [line for line in done.splitlines() if line.startswith("| ")]
    assert sum("wdr, chain |" in line for line in lines) == sum("simple, tree" in line for line in lines) == 2
    assert all("| 100% |" in line for line in lines if "chain" in line or "tree" in line)
