import ast
import re
import sys
from dataclasses import replace

import pytest
from huggingface_hub import ModelCard
from transformers import GPT2Config

from hf_targets import DynamicVocabConfig, MdlmConfig, MultiTokenConfig, MultiTokenForCausalLM
from hf_targets.training import model_card
from hf_targets.training.comparison import Run
from hf_targets.training.model_card import CardFacts, command_line, describe, write_card
from hf_targets.training.tables import describe_comparison, format_perplexities
from tests.programs import run_program
from tests.small_tokenizers import BPE
from tests.tiny_models import make_backbone

TEST = {"perplexity": 151.4, "perplexity_0.2": 140.2, "perplexity_ensemble": 140.2}
RUNS = [
    Run("plain", 0, 10, 60.0, None, {}, {"perplexity": 168.2}, []),
    Run("wdr", 0, 12, 75.0, 0.2, {}, TEST, []),
]
FACTS = CardFacts(dataset="some text", results=f"{describe_comparison(RUNS)}\n\n{format_perplexities(RUNS)}")


def card(folder, config, facts=FACTS, **options):
    config.save_pretrained(folder)
    write_card(folder, "me/tiny", facts, facts.of_run(RUNS[-1]), seeds=[0, 1], seed=0, **options)
    return ModelCard.load(folder / "README.md")


@pytest.fixture
def config():
    return MultiTokenConfig(backbone=GPT2Config(), ngram_size=4, loss_weight=0.1)


def test_a_card_that_is_loaded_again_has_its_library_results_and_seeds(config, tmp_path):
    data = card(tmp_path, config, sample="It\nwas").data
    assert (data.library_name, data.pipeline_tag, data.model_name) == ("hf-targets", "text-generation", "me/tiny")
    assert data.tags == ["hf-targets", "multitoken"]
    assert [(one.metric_name, one.metric_value, one.metric_args) for one in data.eval_results] == [
        ("perplexity", 151.4, {"seed": 0}),
        ("perplexity with ensemble", 140.2, {"seed": 0}),
    ]
    assert {one.dataset_name for one in data.eval_results} == {"some text"}
    assert data.get("seeds") == [0, 1] and data.metrics == ["perplexity"]


def test_a_card_states_no_licence_language_base_or_data_set_that_is_not_known(config, tmp_path):
    data = card(tmp_path, config).data
    assert not [name for name in ("license", "language", "base_model", "datasets") if data.get(name)]
    assert "http" not in (tmp_path / "README.md").read_text()


def test_a_card_states_what_is_given_or_known(config, tmp_path):
    given = replace(FACTS, dataset="org/text", license="mit", language="fr", base_model="org/base")
    data = card(tmp_path, config, given).data
    assert (data.license, data.language, data.base_model, data.datasets) == ("mit", "fr", "org/base", ["org/text"])
    assert card(tmp_path, config, replace(FACTS, dataset="ptb")).data.language == "en"


@pytest.mark.parametrize("given", [None, "mit"])
def test_the_licence_is_that_of_the_base_models_card_unless_another_is_given(given, config, tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Base\n")
    data = card(tmp_path, config, replace(FACTS, base_model=str(tmp_path / "base"), license=given)).data
    assert data.license == (given or "apache-2.0")
    assert data.base_model is None  # a folder here is no name of the Hub
    assert str(tmp_path) not in (tmp_path / "README.md").read_text()


def test_a_base_model_without_a_card_or_out_of_reach_states_no_licence(tmp_path, monkeypatch):
    assert model_card.license_of(str(tmp_path)) is None
    (tmp_path / "README.md").write_text("---\nlicense: [mit\n---\n")
    assert model_card.license_of(str(tmp_path)) is None
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert model_card.license_of("no-such-owner/no-such-model") is None


def test_a_card_has_the_figures_of_all_models_and_a_sample_as_a_quotation(config, tmp_path):
    text = str(card(tmp_path, config, sample="It\nwas"))
    assert "| plain | 168.20 |" in text and "| wdr | 151.40 | 140.20 | 0.2 |" in text
    assert "> It\n> was" in text


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (
            MultiTokenConfig(backbone=GPT2Config(), ngram_size=3),
            "A gpt2 model with heads that predict the tokens after",
        ),
        (MultiTokenConfig(target="embedding", loss_weight=0.5), "the next one, directly (N = 4, alpha 0.5)"),
        (GPT2Config(), "A gpt2 model"),
        (DynamicVocabConfig(), "model that reads and writes phrases given with the prompt"),
        (MdlmConfig(curve={}), "A masked diffusion language model (MDLM), which predicts a sentence curve"),
    ],
)
def test_a_card_says_what_the_model_is(config, what):
    assert what in describe(config)


def test_only_a_model_of_ours_needs_the_import(config, tmp_path):
    ours, theirs = str(card(tmp_path, config)), str(card(tmp_path, GPT2Config()))
    assert (
        "Import hf_targets before loading" in ours
        and "`trust_remote_code=True`" in ours
        and "```python\nimport hf_targets\n" in ours
    )
    assert "import hf_targets" not in theirs and "loads without hf-targets" in theirs


@pytest.mark.parametrize("plain", [True, False])
def test_the_code_on_a_card_runs(plain, tmp_path):
    model = make_backbone("gpt2", vocab_size=300)
    model = model if plain else MultiTokenForCausalLM.from_base(model, ngram_size=2)
    model.save_pretrained(tmp_path / "mine")
    BPE.save_pretrained(tmp_path / "mine")
    write_card(tmp_path / "mine", "mine", FACTS, {}, seeds=[0], seed=0)
    run_code(tmp_path / "mine", tmp_path)


def run_code(folder, where):
    """Run the Python code on a folder's card in another process, whose working folder is `where`."""
    (code,) = re.findall(r"```python\n(.*?)```", str(ModelCard.load(folder / "README.md")), re.DOTALL)
    done = run_program(code, folder=where)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    return code


def test_the_code_on_a_card_loads_a_folder_of_any_name(config, tmp_path):
    config.save_pretrained(tmp_path)
    name = 'runs/"wdr"\\seed0'
    write_card(tmp_path, name, FACTS, {}, seeds=[0], seed=0)
    code = re.search(r"```python\n(.*?)```", (tmp_path / "README.md").read_text(), re.DOTALL)[1]
    texts = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
    assert texts.count(name) == 2


def test_a_command_on_a_card_has_no_token(monkeypatch):
    given = ["recipe.py", "--hub_token", "hf_secret", "--hub-token=hf_secret", "--rows", "a b"]
    monkeypatch.setattr(sys, "argv", given)
    assert command_line() == "python recipe.py --hub_token ... --hub-token=... --rows 'a b'"


def test_a_card_tells_how_many_processes_ran_its_command(config, tmp_path, monkeypatch):
    for count, told in (("1", "Command: `python"), ("2", "Command, in 2 processes: `python")):
        monkeypatch.setenv("WORLD_SIZE", count)
        assert told in str(card(tmp_path, config))


def test_a_comparison_says_what_its_errors_are_and_what_heads_cost():
    assert "There is one seed: a small difference between two models may be chance." in describe_comparison(RUNS)
    assert "A training step with heads takes longer" in describe_comparison(RUNS)
    assert "with the same updates, schedule" in describe_comparison(RUNS)
    ended = [replace(run, history=[{"step": 10 + number}]) for number, run in enumerate(RUNS)]
    assert "with the same schedule, seeds and settings" in describe_comparison(ended)
    assert "They differ in their numbers of updates, as where some ended early." in describe_comparison(ended)
    assert "Heads" not in describe_comparison(RUNS[:1])
    two = [*RUNS, *(replace(run, seed=1) for run in RUNS)]
    told = describe_comparison(two, head_warmup_steps=20)
    assert "means over the seeds with their standard errors" in told
    assert "heads learnt alone for 20 updates" in told
