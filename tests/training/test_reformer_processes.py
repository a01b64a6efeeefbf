"""Two processes train a Reformer, plain and with heads, as one does."""

import pytest
import torch
from datasets import Dataset

from hf_targets import MultiTokenForCausalLM, repair_reformer
from tests.multitoken import test_trainer as test_multitoken
from tests.tiny_backbones import make_backbone, token_ids
from tests.trainer_runs import assert_same, run_processes, weights

_SCRIPT = """
import sys, torch
from tests.training.test_reformer_processes import train

for name in ("plain", "heads"):
    trainer = train(name, f"{sys.argv[1]}/{name}", 4, ddp_backend="gloo")
    torch.save([trainer.model.state_dict(), trainer.evaluate()], f"{sys.argv[1]}/{name}{trainer.args.process_index}.pt")
"""


def train(name, folder, batch, **options):
    """Train a Reformer without hashes, as each process would draw its own, on rows of one length."""
    ids = token_ids(32, 16).tolist()
    rows = Dataset.from_dict({"input_ids": ids, "labels": ids})
    model = repair_reformer(make_backbone("reformer", attn_layers=["local", "local"]))
    if name == "heads":
        model = MultiTokenForCausalLM.from_base(model, ngram_size=3, target="difference")
    options = {"optim": "sgd", "max_steps": 3, "per_device_train_batch_size": batch, **options}
    trainer = test_multitoken.make_trainer(folder, model, train=rows, evaluation=rows, **options)
    trainer.train()
    return trainer


def test_two_processes_take_the_step_of_one(tmp_path):
    run_processes(_SCRIPT, tmp_path / "two")
    for name in ("plain", "heads"):
        trainer = train(name, tmp_path / name, 8)
        one, metrics = weights(trainer.model), trainer.evaluate()
        for rank in (0, 1):
            two, others = torch.load(tmp_path / "two" / f"{name}{rank}.pt", weights_only=False)
            assert_same(one, {key: two[key] for key in one}, rtol=1e-4, atol=1e-6)
            assert others["eval_perplexity"] == pytest.approx(metrics["eval_perplexity"], rel=1e-4)
