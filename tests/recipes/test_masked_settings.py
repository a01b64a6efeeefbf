"""The settings of masked models at the size of the paper, beside the numbers that were published."""

import pytest
import yaml

from hf_targets import MultiTokenMaskedConfig
from tests.programs import ROOT

SETTINGS = ROOT / "recipes" / "settings"


def settings(name):
    return yaml.safe_load((SETTINGS / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["cpu", "crammed_cpu", "paper", "smoke"])
def test_heads_of_masked_models_weigh_as_in_the_paper(name):
    rows = settings(f"tables/train_masked_lm/{name}.yaml")["rows"].values()
    alphas = {MultiTokenMaskedConfig(**row["heads"]).loss_weight for row in rows if row["heads"]}
    assert alphas == {1.0}  # appendix A.3 with its equation (6)


PUBLISHED = {
    "train_masked_lm/paper.yaml": {
        "learning_rate": 1e-3, "adam_beta2": 0.98, "adam_epsilon": 1e-12, "weight_decay": 0.01, "max_grad_norm": 0.5,
        "mask_share": 0.25, "exact_mask_counts": True, "cramming": True, "block_size": 128, "vocab_size": 32768,
    },
    "evaluate_glue/paper.yaml": {
        "num_train_epochs": 5, "per_device_train_batch_size": 16, "per_device_eval_batch_size": 128,
        "learning_rate": 4e-5, "adam_beta2": 0.98, "adam_epsilon": 1e-6, "max_grad_norm": 0, "warmup_steps": 0.1,
        "lr_scheduler_type": "cosine", "max_length": 128, "single_as_pair": True,
    },
}  # fmt: skip
"""JonasGeiping/cramming: train/bert-o4.yaml and train/optim/adam.yaml, eval/GLUE_sane.yaml and eval/optim/adam.yaml."""


def test_a_batch_of_the_published_program_has_8192_rows():
    stated = settings("train_masked_lm/paper.yaml")
    assert stated["per_device_train_batch_size"] * stated["gradient_accumulation_steps"] == 8192


@pytest.mark.parametrize("name", PUBLISHED)
def test_numbers_are_those_of_the_published_program(name):
    for file in (name, f"tables/{name}"):
        stated = settings(file)
        stated |= {} if "include" not in stated else settings(name)
        assert {key: stated.get(key) for key in PUBLISHED[name]} == PUBLISHED[name], file
