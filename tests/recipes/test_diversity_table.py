"""The script that measures gradient diversity at checkpoints: its table, its figure, and what it refuses."""

import json

import pytest
from tables.gradient_diversity import checkpoint_diversities, load_causal, run_checkpoints
from torch import nn
from torch.nn import functional as F
from transformers import AutoTokenizer

from hf_targets import gradient_diversity, load_corpus, pack_blocks
from tests.recipes.running import run_recipe, small_text


@pytest.fixture
def trained(finetuned):
    return finetuned[0]


def measure(folder, *options):
    given = ["--tables", folder.parent / "no", folder, "--names", "plain", "wdr", "--seeds", 0]
    given += ["--dataset", small_text(), "--output_dir", folder / "measured", *options]
    printed = run_recipe("tables/gradient_diversity", *given)
    return printed, json.loads((folder / "measured" / "results.json").read_text())["histories"]


def test_a_training_logs_its_own(trained):
    for run in trained.glob("*-seed*"):
        log = json.loads((run / "trainer_state.json").read_text())["log_history"]
        steps = [entry["step"] for entry in log if "gradient_diversity" in entry]
        assert steps == list(range(0, 4 * len(steps), 4)) and len(steps) > 1


def test_all_checkpoints_are_in_one_table_and_one_figure(trained):
    printed, histories = measure(trained)
    assert printed.splitlines()[0].count("step") == 2 and printed.count("\n| ") >= 3
    assert {name: [len(seed) for seed in seeds] for name, seeds in histories.items()} == {"plain": [2], "wdr": [2]}
    assert (trained / "measured" / "gradient_diversity.png").stat().st_size > 10_000


class Smoothed(nn.Module):
    def __init__(self, folder):
        super().__init__()
        self.model = load_causal(folder)

    def forward(self, input_ids, labels):
        logits = self.model(input_ids).logits[:, :-1].transpose(1, 2)
        return {"loss": F.cross_entropy(logits, labels[:, 1:], label_smoothing=0.2)}


def test_a_figure_is_that_of_the_function_with_the_smoothing_of_the_training(trained):
    run = trained / "plain-seed0"
    step, folder = list(run_checkpoints(run).items())[-1]
    blocks = pack_blocks(load_corpus(small_text())["train"], AutoTokenizer.from_pretrained(run), 32)
    rows = blocks.with_format("torch")[: len(blocks) - 1]  # the last one is padded
    sizes = {"num_batches": 1, "batch_size": len(blocks) - 1, "dropout": False, "label_smoothing": 0.2}
    (found,) = checkpoint_diversities({step: folder}, blocks.select(range(len(blocks) - 1)), **sizes)
    expected = gradient_diversity(Smoothed(folder), {name: rows[name] for name in ("input_ids", "labels")})
    assert found["gradient_diversity"] == pytest.approx(expected, rel=1e-3)
