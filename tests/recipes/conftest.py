"""Runs of recipes whose models several tests read; none of them changes what is there."""

import pytest

from tests.recipes.running import run_recipe, small_text

SHORT = ["--disable_tqdm", "true", "--max_train_words", "600", "--num_train_epochs", "2", "--vocab_size", "400"]


@pytest.fixture(scope="session")
def finetuned(tmp_path_factory):
    """Return the folder of a plain, a simple and a word difference model, which log their diversity, and the table."""
    folder = tmp_path_factory.mktemp("finetuned") / "out"
    logged = ["--save_total_limit", 2, "--gradient_diversity_steps", 4, "--seeds", 0, "--ensemble_weights", 0, 0.2]
    given = [*SHORT, *logged, "--dataset", small_text(), "--output_dir", folder]
    return folder, run_recipe("tables/finetune_gptneo_wdr", *given)


@pytest.fixture(scope="session")
def translated(tmp_path_factory):
    """Return the folder of translation models with three kinds of targets, and what the table says of them."""
    folder = tmp_path_factory.mktemp("translated") / "out"
    given = ["--max_train_pairs", 60, "--max_eval_pairs", 3, "--disable_tqdm", "true", "--output_dir", folder]
    return folder, run_recipe("tables/train_translation", *given, "--only", "plain", "bag-of-words", "wdr")
