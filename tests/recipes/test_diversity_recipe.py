"""The recipe that measures gradient diversity at checkpoints: its table, its figure, and what it refuses."""

import json

import pytest

from hf_targets import MultiTokenForCausalLM, gradient_diversity, load_corpus, pack_blocks, word_level_tokenizer
from tests.recipes.running import run_recipe, small_text


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
        (["--names", "simple-9"], "simple-9-seed0 has no checkpoints"),
        (["--batch_size", "1"], "batch_size must be 2 or more"),
        (["--num_batches", "0"], "num_batches must be 1 or more"),
        (["--batch_size", "9999"], "lower num_batches or batch_size"),
        (["--seeds", "0", "0"], "seeds must differ"),
    ],
)
def test_what_cannot_be_measured_is_told(options, told, trained):
    with pytest.raises(ValueError, match=told):
        measure(trained[0], *options)
