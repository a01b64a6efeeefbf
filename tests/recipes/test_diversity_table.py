"""The script that measures gradient diversity at checkpoints: its table, its figure, and what it refuses."""

import json
import shutil

import pytest
from tables.gradient_diversity import checkpoint_diversities, load_causal, run_checkpoints
from torch import nn
from torch.nn import functional as F
from transformers import AutoTokenizer

from hf_targets import MultiTokenForMaskedLM, gradient_diversity, load_corpus, pack_blocks, word_level_tokenizer
from tests.recipes.running import run_recipe, small_text
from tests.tiny_masked import make_masked_backbone


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoders") / "out"
    options = ["--dataset", small_text(), "--max_train_words", 800, "--num_train_epochs", 2, "--seeds", 0, 1]
    options += ["--save_total_limit", 2, "--gradient_diversity_steps", 1, "--only", "plain", "wdr"]
    run_recipe("tables/finetune_gptneo_wdr", *options, "--disable_tqdm", "true", "--output_dir", folder)
    return folder


def measure(folder, *options):
    given = ["--tables", folder.parent / "no", folder, "--names", "plain", "wdr", "--seeds", 0, 1]
    given += ["--dataset", small_text(), "--output_dir", folder / "measured", *options]
    printed = run_recipe("tables/gradient_diversity", *given)
    return printed, json.loads((folder / "measured" / "results.json").read_text())["histories"]


def test_a_training_logs_its_own(trained):
    for run in trained.glob("*-seed*"):
        log = json.loads((run / "trainer_state.json").read_text())["log_history"]
        steps = [entry["step"] for entry in log if "gradient_diversity" in entry]
        assert steps == list(range(len(steps))) and len(steps) > 1


def test_all_checkpoints_are_in_one_table_and_one_figure(trained):
    printed, histories = measure(trained)
    assert printed.splitlines()[0].count("step") == 2 and printed.count("±") == 4
    assert {name: [len(seed) for seed in seeds] for name, seeds in histories.items()} == {
        "plain": [2, 2],
        "wdr": [2, 2],
    }
    assert (trained / "measured" / "gradient_diversity.png").stat().st_size > 10_000


class Smoothed(nn.Module):
    def __init__(self, folder):
        super().__init__()
        self.model = load_causal(folder)

    def forward(self, input_ids, labels):
        logits = self.model(input_ids).logits[:, :-1].transpose(1, 2)
        return {"loss": F.cross_entropy(logits, labels[:, 1:], label_smoothing=0.2)}


@pytest.mark.parametrize(("load", "share"), [(load_causal, 0.0), (Smoothed, 0.2)])
def test_a_figure_is_that_of_the_function_with_the_smoothing_of_the_training(trained, load, share):
    run = trained / "plain-seed0"
    step, folder = list(run_checkpoints(run).items())[-1]
    blocks = pack_blocks(load_corpus(small_text())["train"], AutoTokenizer.from_pretrained(run), 32)
    rows = blocks.with_format("torch")[: len(blocks) - 1]  # the last one is padded
    sizes = {"num_batches": 1, "batch_size": len(blocks) - 1, "dropout": False, "label_smoothing": share}
    (found,) = checkpoint_diversities({step: folder}, blocks.select(range(len(blocks) - 1)), **sizes)
    expected = gradient_diversity(load(folder), {name: rows[name] for name in ("input_ids", "labels")})
    assert found["gradient_diversity"] == pytest.approx(expected, rel=1e-3)


def test_what_cannot_be_measured_is_told(trained, tmp_path):
    for options, told in (
        (["--names", "simple"], "no whole checkpoints"),
        (["--batch_size", "9999"], "lower num_batc"),
    ):
        with pytest.raises(ValueError, match=told):
            measure(trained, *options)
    shutil.copytree(trained, tmp_path / "out")
    word_level_tokenizer(["other words\n"]).save_pretrained(tmp_path / "out" / "wdr-seed0")
    with pytest.raises(ValueError, match="must have the same tokenizer"):
        measure(tmp_path / "out")
    base = make_masked_backbone("bert")
    for model in (base, MultiTokenForMaskedLM.from_base(base)):
        model.save_pretrained(tmp_path / "masked")
        with pytest.raises(ValueError, match=r"causal|Unrecognized configuration"):
            load_causal(tmp_path / "masked")
