import re
from dataclasses import replace

import pytest
from transformers import GPT2Config

from hf_targets import MultiTokenConfig
from hf_targets.training.comparison import Row
from hf_targets.training.model_card import write_model_card

TEST = {"perplexity": 151.4, "perplexity_0.2": 140.2, "perplexity_ensemble": 140.2}
ROWS = [
    Row("plain", 0, 10, 60.0, None, {}, {"perplexity": 168.2}, []),
    Row("wdr", 0, 12, 75.0, 0.2, {}, TEST, []),
]


def card(folder, config, rows=ROWS, **options):
    command = "accelerate launch recipe.py"
    options = {"dataset": "some text", "command": command, "sample": "It\nwas", **options}
    write_model_card(folder, "me/tiny", config, rows, rows[-1], **options)
    return (folder / "README.md").read_text()


@pytest.fixture
def text(tmp_path):
    return card(tmp_path, MultiTokenConfig(backbone=GPT2Config(), ngram_size=4, loss_weight=0.1))


def test_a_card_links_only_the_figure_beside_it(text):
    assert re.findall(r"\]\((.*?)\)", text) == ["learning_curves.png"]
    assert "http" not in text


def test_a_card_claims_no_equal_budget_of_rows_that_took_different_times(text):
    assert "budget" not in text
    told = "with the same updates of the backbone, schedule, seeds and settings. Heads make a step longer"
    assert told in " ".join(text.split())
    assert "| 60 s |" in text and "| 75 s |" in text


def test_a_card_has_the_numbers_of_all_rows_and_those_of_the_last_as_results(text):
    assert "| plain | 168.20 |" in text
    assert "| wdr | 151.40 | 140.20 | 0.2 |" in text
    assert "value: 151.4\n" in text and "value: 140.2\n" in text


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (MultiTokenConfig(backbone=GPT2Config(), ngram_size=3), "A gpt2 model with heads that predict the words after"),
        (MultiTokenConfig(backbone=GPT2Config(), ngram_size=3), "the next one, as word differences (N = 3, alpha 0.1)"),
        (MultiTokenConfig(target="embedding", loss_weight=0.5), "the next one, directly (N = 4, alpha 0.5)"),
        (GPT2Config(), "A plain gpt2 model, trained with the Python package hf-targets."),
    ],
)
def test_a_card_says_what_the_model_is(config, what, tmp_path):
    assert what in card(tmp_path, config)


def test_a_card_of_several_seeds_says_which_model_it_is_and_what_is_no_difference(tmp_path):
    config = MultiTokenConfig(backbone=GPT2Config())
    assert "This is one seed: a small difference" in card(tmp_path, config)
    rows = [*ROWS, *(replace(row, seed=1, test={**row.test, "perplexity": 160.0}) for row in ROWS)]
    text = card(tmp_path, config, rows, head_warmup_steps=20)
    assert "means over the seeds 0, 1, with their standard errors" in text
    assert "The model here is that of seed 1" in text
    assert "| plain | 164.10 ± 4.10 |" in text
    assert "| wdr | none (-8.40 ± 5.94) | -23.90 ± 4.10 |" in text
    assert "heads learnt alone for 20 updates" in text
