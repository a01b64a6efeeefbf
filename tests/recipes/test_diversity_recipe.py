"""The recipe that measures gradient diversity at checkpoints: its table, its figure, and what it refuses."""

import json
import shutil

import pytest
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_targets import (
    MultiTokenForCausalLM,
    MultiTokenForMaskedLM,
    checkpoint_diversities,
    gradient_diversity,
    load_corpus,
    pack_blocks,
    word_level_tokenizer,
)
from tests.recipes.running import run_recipe, small_text
from tests.tiny_masked import make_masked_backbone


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoders") / "out"
    options = ["--dataset", small_text(), "--max_train_words", 1500, "--num_train_epochs", 2, "--seeds", 0, 1]
    options += ["--save_total_limit", 2, "--gradient_diversity_steps", 1, "--targets", "difference"]
    printed = run_recipe("train_small_lm", *options, "--disable_tqdm", "true", "--output_dir", folder)
    return folder, printed


def measure(folder, *options):
    given = ["--experiments", folder, "--names", "plain", "wdr-3", "--seeds", 0, 1, "--dataset", small_text()]
    return run_recipe("measure_gradient_diversity", *given, "--output_dir", folder / "measured", *options)


def test_a_training_logs_its_own(trained):
    folder, _ = trained
    rows = json.loads((folder / "results.json").read_text())["rows"]
    for row in rows:
        steps = [entry["step"] for entry in row["history"] if "gradient_diversity" in entry]
        assert steps == list(range(len(steps))) and len(steps) > 1


def test_all_checkpoints_are_in_one_table_and_one_figure(trained):
    folder, _ = trained
    printed = measure(folder)
    assert printed.splitlines()[0].count("step") == 2 and printed.count("±") == 4
    histories = json.loads((folder / "measured" / "gradient_diversity.json").read_text())["histories"]
    assert {name: [len(seed) for seed in seeds] for name, seeds in histories.items()} == {
        "plain": [2, 2],
        "wdr-3": [2, 2],
    }
    assert (folder / "measured" / "gradient_diversity.png").stat().st_size > 10_000


def test_a_figure_is_that_of_the_function(trained):
    folder, _ = trained
    words = word_level_tokenizer(load_corpus(small_text())["train"]["text"])
    rows = pack_blocks(load_corpus(small_text())["train"], words, 32).with_format("torch")[:]
    all_of_them = ["--num_batches", 1, "--batch_size", len(rows["input_ids"]), "--block_size", 32]
    measure(folder, "--dropout", "false", *all_of_them)
    last = json.loads((folder / "measured/gradient_diversity.json").read_text())["histories"]["wdr-3"][0][-1]
    model = MultiTokenForCausalLM.from_pretrained(folder / "wdr-3-seed0" / f"checkpoint-{last['step']}")
    expected = gradient_diversity(model, {name: rows[name] for name in ("input_ids", "labels")})
    assert last["gradient_diversity"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--names", "simple-9"], "simple-9-seed0 has no whole checkpoints"),
        (["--batch_size", "1"], "batch_size must be 2 or more"),
        (["--num_batches", "0"], "num_batches must be 1 or more"),
        (["--batch_size", "9999"], "lower num_batches or batch_size"),
        (["--seeds", "0", "0"], "seeds must differ"),
        (["--names", "plain", "plain"], "names must differ, as each is a row of the table, got plain plain"),
        (["--block_size", "33"], "block_size must be at most the 32 positions of .*, got 33; lower it"),
        (["--label_smoothing_factor", "1"], r"label_smoothing_factor must be in \[0, 1\)"),
    ],
)
def test_what_cannot_be_measured_is_told(options, told, trained):
    with pytest.raises(ValueError, match=told):
        measure(trained[0], *options)


def test_a_run_that_was_broken_off_a_lost_file_and_a_foreign_tokenizer_are_told(trained, tmp_path):
    experiment = tmp_path / "out"
    shutil.copytree(trained[0], experiment)
    run = experiment / "wdr-3-seed0"
    newest = max(run.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    (newest / "model.safetensors").unlink()
    measure(experiment)
    histories = json.loads((experiment / "measured" / "gradient_diversity.json").read_text())["histories"]
    assert [len(seed) for seed in histories["wdr-3"]] == [1, 2]
    word_level_tokenizer(["other words\n"]).save_pretrained(run)
    with pytest.raises(ValueError, match=r"must have the same tokenizer, .*plain-seed0 and .*wdr-3-seed0 have not"):
        measure(experiment)
    for file in run.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ValueError, match=r"no tokenizer of a finished run at .*wdr-3-seed0.*; train it to its end"):
        measure(experiment)
    for file in (experiment / "plain-seed0").glob("tokenizer*"):
        shutil.copy(file, experiment)  # where some recipes save one for all of their runs
    measure(experiment)


def test_a_masked_model_is_not_measured_as_a_causal_one(tmp_path):
    base = make_masked_backbone("bert")
    for kind, model in (("plain", base), ("wdr", MultiTokenForMaskedLM.from_base(base))):
        model.save_pretrained(tmp_path / f"{kind}-seed0" / "checkpoint-1")
        with pytest.raises(ValueError, match=r"takes a causal model, and .* is a \w+ForMaskedLM; log the diversity"):
            measure(tmp_path, "--names", kind, "--seeds", "0")


class Smoothed(nn.Module):
    def __init__(self, folder):
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained(folder)

    def forward(self, input_ids, labels):
        logits = self.model(input_ids).logits[:, :-1].transpose(1, 2)
        return {"loss": F.cross_entropy(logits, labels[:, 1:], label_smoothing=0.2)}


def test_a_figure_has_the_smoothing_of_the_training(trained):
    folder, found = trained[0], []
    for share in (0.0, 0.2):
        measure(folder, "--dropout", "false", "--label_smoothing_factor", share)
        found.append(json.loads((folder / "measured/gradient_diversity.json").read_text()))
    last = [{name: seeds[0][-1] for name, seeds in one["histories"].items()} for one in found]
    for name in ("plain", "wdr-3"):
        assert last[0][name]["gradient_diversity"] != last[1][name]["gradient_diversity"]
    run, settings = folder / "plain-seed0", found[1]["settings"]
    blocks = pack_blocks(load_corpus(small_text())["train"], AutoTokenizer.from_pretrained(run), 32)
    sizes = {name: settings[name] for name in ("num_batches", "batch_size", "dropout")}
    step = last[1]["plain"]["step"]
    (entry,) = checkpoint_diversities({step: run / f"checkpoint-{step}"}, Smoothed, blocks, **sizes)
    assert entry["gradient_diversity"] == pytest.approx(last[1]["plain"]["gradient_diversity"], rel=1e-4)
