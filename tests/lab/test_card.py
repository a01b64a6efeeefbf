import re
import sys

import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries
from transformers import GPT2Config

from hf_targets import MultiTokenConfig, MultiTokenForCausalLM
from lab.card import EVAL_RESULTS, command_line, quoted, write_card
from tests.programs import run_program
from tests.small_tokenizers import BPE
from tests.tiny_models import make_backbone

RESULTS = {"perplexity": 151.4, "perplexity_ensemble": 140.2, "validation_perplexity": 3.0, "seconds": 7.0}


def run_code(folder, where):
    """Run the Python code on a folder's card in another process, whose working folder is `where`."""
    (code,) = re.findall(r"```python\n(.*?)```", str(ModelCard.load(folder / "README.md")), re.DOTALL)
    done = run_program(code, folder=where)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    return code


def test_a_card_that_is_loaded_again_has_what_is_known_of_its_model(tmp_path):
    MultiTokenConfig(backbone=GPT2Config()).save_pretrained(tmp_path)
    stated = {"dataset": "some text", "base_model": "org/base", "text": "It was."}
    write_card(tmp_path, RESULTS, name="me/tiny", **stated)
    card = ModelCard.load(tmp_path / "README.md")
    assert (card.data.library_name, card.data.base_model) == ("hf-targets", "org/base")
    found = [(one.metric_name, one.metric_value, one.dataset_name) for one in card.data.eval_results]
    assert found == [("perplexity", 151.4, "some text"), ("perplexity_ensemble", 140.2, "some text")]
    assert "It was." in str(card)
    scores = parse_eval_result_entries(yaml.safe_load((tmp_path / EVAL_RESULTS).read_text()))
    assert [(one.task_id, one.value, one.dataset_id) for one in scores] == found


def test_what_is_not_known_is_not_stated_and_a_folder_is_no_base_model(tmp_path):
    GPT2Config().save_pretrained(tmp_path)
    write_card(tmp_path, RESULTS, name="me/tiny", dataset="some text", base_model=str(tmp_path))
    card = ModelCard.load(tmp_path / "README.md")
    assert not card.data.get("base_model")
    assert "import hf_targets" not in str(card) and str(tmp_path) not in str(card)


@pytest.mark.parametrize("plain", [True, False])
def test_the_code_on_a_card_runs(plain, tmp_path):
    model = make_backbone("gpt2", vocab_size=300)
    model = model if plain else MultiTokenForCausalLM.from_base(model, ngram_size=2)
    folder = tmp_path / 'a "name"'
    model.save_pretrained(folder)
    BPE.save_pretrained(folder)
    write_card(folder, RESULTS, dataset=str(tmp_path / "text.txt"))
    assert str(tmp_path) not in (folder / "README.md").read_text()
    run_code(folder, tmp_path)


def test_a_command_on_a_card_has_no_token_no_password_and_no_folder(monkeypatch):
    given = ["recipe.py", "--hub_token", "hf_secret", "--hub-token=hf_secret", "--rows", "a b"]
    monkeypatch.setattr(sys, "argv", [*given, "--dataset=/home/me/a.txt", "https://me:secret@example.org/b/c"])
    told = "python recipe.py --hub_token ... ... --rows 'a b' --dataset=.../a.txt https://example.org/b/c"
    assert command_line() == told


@pytest.mark.parametrize("text", ["a\r<img src=x>", "```\n# Heading", "` <b>", "\x1b[2J<script>", "ends in ``"])
def test_a_sample_on_a_card_stays_one_piece_of_code_in_one_line(text):
    [mark, line] = re.fullmatch(r"(`+) ?(.*?) ?\1(?!`)", quoted(text)).groups()
    assert mark not in re.findall("`+", line) and not re.search(r"[\x00-\x1f]", line)
    assert line.replace("\ufffd", "\x1b").split() == text.split()
