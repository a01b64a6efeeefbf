import json
import re

import pytest
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from hf_targets import DynamicVocabForCausalLM, load_corpus, pack_blocks
from hf_targets.evaluation.perplexity import perplexity_of_blocks
from lab.pairwise import QUESTIONS
from tests.lab.test_card import run_code
from tests.recipes.running import run_recipe, small_text
from tests.tiny_models import make_backbone

SIZES = {"n_positions": 64, "n_embd": 32, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
SMALL = ["--max_train_words", "1500", "--logging_steps", "2", "--disable_tqdm", "true", "--num_train_epochs", "1"]
SMALL += ["--block_size", "64", "--vocab_size", "512", "--per_device_train_batch_size", "8"]
SMALL += ["--config", json.dumps(SIZES), "--dataset", small_text()]


def results(folder):
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phrases") / "run"
    printed = run_recipe("tables/train_dynamic_vocab", "--output_dir", folder, *SMALL)
    return folder, printed


def test_the_table_has_both_perplexities_of_all_rows(trained):
    folder, printed = trained
    for name in ("perplexity", "best_path_perplexity"):
        assert f"{results(folder / 'ours-seed0')[name]:.2f}" in printed
    assert "best_path_perplexity" not in results(folder / "plain-seed0")
    assert not isinstance(AutoModelForCausalLM.from_pretrained(folder / "plain-seed0"), DynamicVocabForCausalLM)


def test_the_saved_model_is_the_measured_one_with_its_tokenizer_and_a_card_whose_code_runs(trained):
    folder = trained[0] / "ours-seed0"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert isinstance(model, DynamicVocabForCausalLM)
    test = pack_blocks(load_corpus(small_text())["test"], tokenizer, 64)
    assert perplexity_of_blocks(model, test).per_token == pytest.approx(results(folder)["perplexity"], rel=1e-4)
    card = ModelCard.load(folder / "README.md")
    assert {"perplexity", "best_path_perplexity"} <= {one.metric_name for one in card.data.eval_results}
    assert "phrases=phrases" in run_code(folder, folder.parent)


@pytest.mark.parametrize(
    "options",
    [
        ["--phrases", "fmm", "--fmm_min_count", "3", "--negatives", "in_batch", "corpus_retrieval"],
        ["--negatives", "generation", "--losses", '{"kl_positions": "all"}', "--phrase_encoder"],
    ],
)
def test_other_phrases_negatives_and_encoders_train_from_a_given_model(trained, options, tmp_path):
    base = trained[0] / "plain-seed0"
    if options[-1] == "--phrase_encoder":
        make_backbone("gpt2", vocab_size=512).save_pretrained(tmp_path / "encoder")
        AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "encoder")
        options = [*options, tmp_path / "encoder", "--negatives_model", base]
    given = ["--model_name_or_path", base, "--output_dir", tmp_path / "out", "--max_train_words", "700"]
    run_recipe("train_dynamic_vocab", *SMALL, *options, *given)
    assert isinstance(AutoModelForCausalLM.from_pretrained(tmp_path / "out"), DynamicVocabForCausalLM)
    assert results(tmp_path / "out")["best_path_perplexity"] > 1


def judge_at(folder, model) -> str:
    """Make a model with another one's tokenizer and room for the judge's questions, and return its folder."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    judge = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=1024))
    for part in (judge, tokenizer):
        part.save_pretrained(folder / "judge")
    return str(folder / "judge")


def test_models_continue_prefixes_and_the_table_has_the_papers_columns(trained, tmp_path):
    folder = trained[0]
    models = [str(folder / name) for name in ("ours-seed0", "plain-seed0")]
    output = ["--output", tmp_path / "out.json", "--seeds", "0", "1", "--multiword_tokens", "50"]
    judge = judge_at(tmp_path, folder / "ours-seed0")
    asked = ["--pairwise_judge", judge, "--pairs_for_annotators", tmp_path / "pairs"]
    printed = run_recipe("tables/evaluate_generation", "--models", *models, *output, *asked)
    content = json.loads((tmp_path / "out.json").read_text())
    assert [len(content["figures"][name]) for name in models] == [2, 2]
    figures = content["figures"][models[0]][0]
    of_texts = {"rep_2", "diversity", "latency", "generated_ppl", "bytes_per_step"}
    assert of_texts | {"steps", "nsl", "nsl_multiword"} <= figures.keys()
    assert set(content["preferences"]) == {f"{models[1]}, {aspect}" for aspect in QUESTIONS}
    assert all(sum(shares.values()) == pytest.approx(1) for shares in content["preferences"].values())
    assert len(json.loads((tmp_path / "pairs" / "key.json").read_text())) == 4
    assert "Intervals of 95%, over prefixes" in printed
    one, other = content["texts"][models[0]]
    assert len(one) == len(other) == 4 and one != other
    assert 0 < figures["steps"] <= 24
    run_recipe("tables/evaluate_generation", "--models", models[1], *output, "--do_sample", "false")
    greedy = json.loads((tmp_path / "out.json").read_text())
    assert len(greedy["figures"][models[1]]) == 1  # greedily one model writes one text, whatever the seed


def generate(trained, *arguments, **given):
    return run_recipe("generate_with_phrases", "--model", trained[0] / "ours-seed0", *arguments, **given)


def test_a_generated_text_is_marked_in_the_terminal_and_on_a_page(trained, tmp_path):
    terms = tmp_path / "terms.txt"
    terms.write_text("the import statement\nof the module\n\n", encoding="utf-8")
    printed = generate(trained, "--phrases", terms, "--html", tmp_path / "page.html")
    assert printed.startswith("The import statement")
    used, tokens, steps = map(int, re.search(r"(\d+) used; (\d+) tokens in (\d+) steps", printed).groups())
    assert 0 < used < steps < tokens  # as many as the model has positions for, of 64
    assert printed.count("documentation:topics, part ") + printed.count("from a list of phrases") == used
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<mark") == used
    assert re.search(r"[\d,]+ phrases at hand.*", printed)[0] in page


def test_the_same_seed_writes_the_same_text_and_another_one_another(trained):
    first, same, other = (generate(trained, "--seed", seed) for seed in "112")
    assert first == same != other


def test_a_model_without_a_chat_template_takes_no_message(trained):
    with pytest.raises(ValueError, match="chat template"):
        generate(trained, "--chat", "true")


def test_the_benchmark_of_real_time_has_the_rows_of_table_12(trained, tmp_path):
    folder = trained[0]
    given = ["--model", folder / "ours-seed{seed}", "--judge", folder / "plain-seed0"]
    printed = run_recipe("benchmarks/real_time", *given, "--output", tmp_path / "out.json")
    figures = json.loads((tmp_path / "out.json").read_text())["figures"]
    assert list(figures) == ["70%", "70% + real time", "100%"]
    assert "Real time takes" in printed


def test_in_another_domain_models_write_as_they_are_fine_tuned_and_with_its_phrases(trained, tmp_path):
    plain, ours = (trained[0] / f"{name}-seed{{seed}}" for name in ("plain", "ours"))
    given = ["--plain", plain, "--models", ours, "--judge", plain, "--dataset", small_text()]
    printed = run_recipe("tables/adapt_domain", *given, "--output_dir", tmp_path / "out")
    content = results(tmp_path / "out")
    for way in ("greedy", "nucleus"):
        assert list(content[way]["figures"]) == [str(plain), "fine-tuned", str(ours)]
        assert f"{way.capitalize()}:" in printed
    [before], [after], _ = content["perplexities"].values()
    assert after["perplexity"] != before["perplexity"]
    assert content["nucleus"]["figures"][str(ours)][0]["steps"] < 24
