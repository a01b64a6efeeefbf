"""Settings at the size of the papers, beside the numbers that the papers and their programs have."""

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
    # JonasGeiping/cramming: train/bert-o4.yaml and train/optim/adam.yaml, eval/GLUE_sane.yaml and eval/optim/adam.yaml
    "train_masked_lm/paper.yaml": {
        "learning_rate": 1e-3, "adam_beta2": 0.98, "adam_epsilon": 1e-12, "weight_decay": 0.01, "max_grad_norm": 0.5,
        "mask_share": 0.25, "exact_mask_counts": True, "cramming": True, "block_size": 128, "vocab_size": 32768,
    },
    "evaluate_glue/paper.yaml": {
        "num_train_epochs": 5, "per_device_train_batch_size": 16, "per_device_eval_batch_size": 128,
        "learning_rate": 4e-5, "adam_beta2": 0.98, "adam_epsilon": 1e-6, "max_grad_norm": 0, "warmup_steps": 0.1,
        "lr_scheduler_type": "cosine", "max_length": 128, "single_as_pair": True,
    },
    # fairseq: examples/translation, transformer_iwslt_de_en; the WDR paper, table 6
    "train_translation/iwslt14.yaml": {
        "learning_rate": 5e-4, "adam_beta2": 0.98, "weight_decay": 1e-4, "max_grad_norm": 0, "warmup_steps": 4000,
        "lr_scheduler_type": "inverse_sqrt", "label_smoothing_factor": 0.1, "tokens_per_batch": 4096, "dropout": 0.3,
        "max_pair_ratio": 1.5, "max_pair_words": 175, "patience": 50,
    },
    # the WDR paper, table 6: batches of 4K words
    "tables/train_small_lm/paper.yaml": {
        "learning_rate": 2.5e-4, "label_smoothing_factor": 0.1, "num_train_epochs": 200, "patience": 50,
        "block_size": 64, "per_device_train_batch_size": 64, "resid_pdrop": 0.3, "n_layer": 6, "n_inner": 2100,
    },
    # the earlier WDR paper, appendix A.3
    "finetune_gptneo_wdr/paper.yaml": {
        "learning_rate": 1e-5, "lr_scheduler_type": "linear", "num_train_epochs": 3, "per_device_train_batch_size": 8,
    },
    # Liu et al., sections 3.1 and appendix B
    "train_dynamic_vocab/paper.yaml": {
        "learning_rate": 5e-5, "lr_scheduler_type": "linear", "max_steps": 400_000, "max_grad_norm": 1.0,
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
    },
    # kuleshov-group/mdlm: configs/config.yaml; 512 rows a step
    "train_mdlm_curve/paper.yaml": {
        "learning_rate": 3e-4, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2500, "weight_decay": 0.0,
        "adam_beta1": 0.9, "adam_beta2": 0.999, "max_grad_norm": 1.0, "ema_decay": 0.9999, "max_length": 128,
        "per_device_train_batch_size": 64, "gradient_accumulation_steps": 8, "dropout": 0.1,
    },
    # salesforce/awd-lstm-lm: README; the other numbers are the defaults of its main.py and of ours
    "train_awd_lstm/wikitext2.yaml": {
        "num_train_epochs": 750, "per_device_train_batch_size": 80, "cache_window": 3785,
    },
}  # fmt: skip


def test_a_batch_of_the_published_program_has_8192_rows():
    stated = settings("train_masked_lm/paper.yaml")
    assert stated["per_device_train_batch_size"] * stated["gradient_accumulation_steps"] == 8192


@pytest.mark.parametrize("name", PUBLISHED)
def test_numbers_are_those_of_the_published_program(name):
    for file in {name, f"tables/{name.removeprefix('tables/')}"}:
        if not (SETTINGS / file).exists():
            continue
        stated = settings(file)
        stated |= {} if "include" not in stated else settings(name)
        stated |= stated.get("config", {})
        assert {key: stated.get(key) for key in PUBLISHED[name]} == PUBLISHED[name], file
