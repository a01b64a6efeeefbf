import json
import re

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from hf_targets import DynamicVocabForCausalLM, load_corpus, pack_blocks
from hf_targets.evaluation.perplexity import perplexity_of_blocks
from hf_targets.training.tables import format_mean
from tests.programs import ROOT, run_program
from tests.recipes.running import run_recipe, small_text

SMALL = ["--max_train_words", "1500", "--logging_steps", "2", "--disable_tqdm", "true", "--num_train_epochs", "1"]
SMALL += ["--block_size", "64", "--vocab_size", "512", "--hidden_size", "32", "--per_device_train_batch_size", "8"]
SMALL += ["--dataset", small_text()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phrases") / "run"
    printed = run_recipe("train_dynamic_vocab", "--output_dir", str(folder), *SMALL, "--seeds", "0", "1")
    return folder / "ours-seed0", printed


def test_training_leaves_a_model_its_tokenizer_and_both_perplexities(trained):
    folder, printed = trained
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert isinstance(model, DynamicVocabForCausalLM)
    assert len(AutoTokenizer.from_pretrained(folder)) == model.config.get_text_config().vocab_size
    rows = json.loads((folder.parent / "results.json").read_text())["rows"]
    ours = [row for row in rows if row["name"] == "ours"]
    for name in ("perplexity", "best_path_perplexity"):
        assert format_mean([row["test"][name] for row in ours]) in printed
    logged = [entry for entry in ours[0]["history"] if "loss" in entry]
    assert all({"loss_token", "loss_phrase", "loss_kl"} <= entry.keys() for entry in logged)
    assert logged


def test_every_row_is_trained_with_every_seed_for_as_many_steps_from_the_same_start(trained):
    folder, _ = trained
    rows = json.loads((folder.parent / "results.json").read_text())["rows"]
    assert [(row["name"], row["seed"]) for row in rows] == [("plain", 0), ("ours", 0), ("plain", 1), ("ours", 1)]
    assert len({row["history"][-1]["step"] for row in rows}) == 1
    assert not isinstance(AutoModelForCausalLM.from_pretrained(folder.parent / "plain-seed1"), DynamicVocabForCausalLM)


def test_no_figure_of_the_test_text_was_chosen_on_it(trained):
    folder, _ = trained
    for row in json.loads((folder.parent / "results.json").read_text())["rows"]:
        assert row["test"].keys() <= {"perplexity", "best_path_perplexity"}
        evaluated = [entry["eval_perplexity"] for entry in row["history"] if "eval_perplexity" in entry]
        assert row["validation"]["perplexity"] == pytest.approx(min(evaluated))  # the checkpoint that is measured
        assert not any(name.startswith("test") for entry in row["history"] for name in entry)


@pytest.mark.parametrize(
    ("row", "more"),
    [
        ({"phrases": "none"}, ["--encoder_learning_rate", "0.01"]),
        ({"phrases": "tokens", "negatives": ["in_batch", "pre_batch"]}, ["--lora_rank", "2"]),
        ({"phrases": "fmm", "fmm_min_count": 3, "negatives": ["in_batch", "corpus_retrieval"]}, []),
    ],
)
def test_other_phrases_and_negatives_train_from_the_model_left(trained, row, more, tmp_path):
    folder, _ = trained
    base = AutoModelForCausalLM.from_pretrained(folder).backbone
    base.save_pretrained(tmp_path / "base")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "base")
    more = [*more, "--model_name_or_path", str(tmp_path / "base"), "--output_dir", str(tmp_path / "out")]
    rows = ["--rows", json.dumps({"row": row})]
    printed = run_recipe("train_dynamic_vocab", *more, *SMALL, "--max_train_words", "700", *rows)
    assert ("best_path_perplexity" in printed) == (row["phrases"] != "none")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "row-seed0")
    assert isinstance(model, DynamicVocabForCausalLM) == (row["phrases"] != "none")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / "row-seed0")
    test = pack_blocks(load_corpus(small_text())["test"], tokenizer, 64)
    [measured] = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    assert perplexity_of_blocks(model, test).per_token == pytest.approx(measured["test"]["perplexity"], rel=1e-4)


def test_negatives_that_need_a_table_or_a_model_say_so(tmp_path):
    where = ["--output_dir", str(tmp_path / "out"), *SMALL]
    with pytest.raises(ValueError, match='which phrases="fmm" has'):
        run_recipe("train_dynamic_vocab", "--negatives", "corpus_retrieval", *where)
    with pytest.raises(ValueError, match="give negatives_model"):
        run_recipe("train_dynamic_vocab", "--negatives", "generation", *where)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ('{"a": null}', "a must have the phrase settings in which it differs"),
        ('{"a": {"block_size": 3}}', "a has the unknown phrase setting 'block_size'"),
        ('{"a": {"min_gap": "five"}}', "a must have min_gap like 5, got 'five'"),
        ('{"a": {"phrases": "few"}}', "phrases must be one of words, tokens, fmm, parsing, chunks, none, got 'few'"),
        ('{"a": {"min_gap": -1}}', "min_gap must be 0 or more"),
    ],
)
def test_a_row_of_settings_that_are_none_is_told_before_anything_is_trained(rows, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        run_recipe("train_dynamic_vocab", "--rows", rows, "--output_dir", str(tmp_path / "out"), *SMALL)
    assert not (tmp_path / "out").exists()


def judge_at(folder, model) -> str:
    """Make a model with another one's tokenizer and room for the judge's questions, and return its folder."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 1024}
    judge = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes))
    for part in (judge, tokenizer):
        part.save_pretrained(folder / "judge")
    return str(folder / "judge")


def test_models_continue_prefixes_and_the_table_has_the_papers_columns(trained, tmp_path):
    folder, _ = trained
    models = [str(folder.parent / name) for name in ("ours-seed{seed}", "plain-seed0")]
    output = ["--output", str(tmp_path / "out.json"), "--seeds", "0", "1"]
    printed = run_recipe(
        "evaluate_generation", "--models", *models, *output, "--pairwise_judge", judge_at(tmp_path, folder)
    )
    content = json.loads((tmp_path / "out.json").read_text())
    assert [len(content["figures"][name]) for name in models] == [2, 2]
    figures = content["figures"][models[0]][0]
    assert {
        "rep_2",
        "rep_3",
        "rep_4",
        "diversity",
        "latency",
        "latency_median",
        "latency_p95",
        "generated_ppl",
        "nsl",
        "bytes_per_step",
    } <= figures.keys()
    for name in models:
        assert format_mean([columns["nsl"] for columns in content["figures"][name]]) in printed
    # of every model and seed, with nothing chosen
    assert content.keys() == {"settings", "figures", "texts", "preferences"}
    assert sum(content["preferences"][models[1]].values()) == pytest.approx(1)
    assert "Intervals of 95%, over prefixes" in printed and "- first | " in printed
    assert "| model | better | no preference | worse |" in printed
    one, other = content["texts"][models[0]]
    assert len(one) == len(other) == 4
    assert one != other
    assert 0 < figures["nsl"] <= 24
    run_recipe("evaluate_generation", "--models", models[1], *output, "--split", "validation", "--do_sample", "false")
    greedy = json.loads((tmp_path / "out.json").read_text())
    assert greedy["texts"][models[1]] != content["texts"][models[1]]
    assert len(greedy["figures"][models[1]]) == 1  # greedily one model writes one text, whatever the seed


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--seeds", "1", "1"], "seeds must differ"),
        (["--models", "a", "a"], "models must name at least one model, and each once"),
        (["--seed", "1"], "give seeds in its place"),
    ],
)
def test_seeds_and_models_are_named_once_each(arguments, told):
    with pytest.raises(ValueError, match=told):
        run_recipe("evaluate_generation", *arguments)


def test_a_generated_text_is_marked_in_the_terminal_and_on_a_page(trained, tmp_path):
    folder, _ = trained
    terms = tmp_path / "terms.txt"
    terms.write_text("the import statement\nof the module\n\n", encoding="utf-8")
    page_file = tmp_path / "new" / "page.html"  # its folder is made
    printed = run_recipe("generate_with_phrases", "--model", folder, "--phrases", terms, "--html", page_file)
    assert printed.startswith("The import statement")
    used, tokens, steps = map(int, re.search(r"(\d+) used; (\d+) tokens in (\d+) steps", printed).groups())
    assert 0 < used < steps < tokens  # as many as the model has positions for, of 64
    assert printed.count("documentation:topics, part ") + printed.count("from a list of phrases") == used
    page = page_file.read_text(encoding="utf-8")
    assert page.count("<mark") == used
    assert re.search(r"[\d,]+ phrases at hand.*", printed)[0] in page
    assert str(tmp_path) not in page and str(folder) not in page
    assert [file.name for file in page_file.parent.iterdir()] == ["page.html"]


def test_the_same_seed_writes_the_same_text_and_another_one_another(trained):
    folder, _ = trained
    first, same, other = (run_recipe("generate_with_phrases", "--model", str(folder), "--seed", seed) for seed in "112")
    assert first == same != other


def test_a_text_without_phrases_says_why_that_may_be(trained, tmp_path):
    folder, _ = trained
    terms = tmp_path / "odd.txt"
    terms.write_text("zygote quagmire", encoding="utf-8")
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"model: {folder}\nprompt: The import\nphrases: {terms}\n", encoding="utf-8")
    printed = run_recipe("generate_with_phrases", settings=settings)
    assert "1 phrases at hand, 0 used" in printed
    assert "No phrase was used" in printed and "--do_sample true" in printed


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["--prompt", " "], "a prompt must have a word, got ' '"),
        (["--units", "bytes"], 'units must be "words" or "tokens", got \'bytes\''),
        (["--documents", "{}/none.txt"], "cannot read .*none.txt: No such file"),
        (["--phrases", "{}/empty.txt"], "must have one a line, and .*empty.txt has none"),
        (["--documents", "{}/latin.txt"], "must be UTF-8, and .*latin.txt is not"),
        (["--model", "{}"], "Unrecognized model in .*"),
        (["--html", "{}"], "html must be a file to write, and .* is a folder; name a file"),
        (
            ["--new_tokens", "500"],
            "new_tokens must be at most .*, got 500",
        ),
    ],
)
def test_what_cannot_be_generated_is_told_and_nothing_is_written(trained, wrong, told, tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n", encoding="utf-8")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait")
    page = ["--html", str(tmp_path / "page.html")] if "--html" not in wrong else []
    arguments = ["--model", str(trained[0]), *page, *(argument.format(tmp_path) for argument in wrong)]
    with pytest.raises(ValueError, match=told):
        run_recipe("generate_with_phrases", *arguments)
    assert {file.name for file in tmp_path.iterdir()} == {"empty.txt", "latin.txt"}


def test_a_model_without_phrases_is_told_from_one_with(trained):
    plain = trained[0].parent / "plain-seed0"
    with pytest.raises(ValueError, match=r"one that train_dynamic_vocab.py left, and '.*' is a gpt2 without phrases"):
        run_recipe("generate_with_phrases", "--model", str(plain))


def test_misuse_is_told_in_one_line_with_exit_code_2(tmp_path):
    arguments = ["--model", tmp_path, "--prompt", "x", "--documents", tmp_path / "none.txt"]
    done = run_program(ROOT / "recipes" / "generate_with_phrases.py", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r"generate_with_phrases.py: cannot read .*\n", done.stderr)


ADAPTED = ["--dataset", small_text(), "--num_prefixes", "3", "--disable_tqdm", "true"]


def test_a_domain_has_a_fine_tuned_row_and_phrases_of_its_own_documents(trained, tmp_path):
    folder, _ = trained
    plain, ours = (str(folder.parent / f"{name}-seed{{seed}}") for name in ("plain", "ours"))
    given = ["--plain", plain, "--models", ours, "--seeds", "0", "1", "--output_dir", str(tmp_path / "out")]
    settings = tmp_path / "settings.yaml"  # without a judge: that of the next seed
    smoke = (ROOT / "recipes/settings/adapt_domain/smoke.yaml").read_text()
    settings.write_text("\n".join(line for line in smoke.splitlines() if not line.startswith("judge")))
    printed = run_recipe("adapt_domain", *given, *ADAPTED, settings=settings)
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    names = [plain, "fine-tuned", ours]
    for way in ("greedy", "nucleus"):
        assert list(content["figures"][way]) == list(content["texts"][way]) == names
        for name in names:
            assert [len(texts) for texts in content["texts"][way][name]] == [3, 3]
            assert format_mean([columns["nsl"] for columns in content["figures"][way][name]]) in printed
        assert {columns["phrase_share"] for columns in content["figures"][way]["fine-tuned"]} == {0}
    assert content["texts"]["nucleus"][plain][0] != content["texts"]["greedy"][plain][0]
    ours_perplexity, plain_perplexity, tuned = (content["perplexities"][name] for name in (ours, plain, "fine-tuned"))
    assert tuned[0]["perplexity"] < plain_perplexity[0]["perplexity"]
    assert ours_perplexity[0] != plain_perplexity[0]
    recorded = json.loads((tmp_path / "out" / "run.json").read_text())
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"run.json", "fine-tuned-seed0", "fine-tuned-seed1", *recorded["outputs"]}
    tuned_model = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "fine-tuned-seed1")
    test = pack_blocks(load_corpus(small_text())["test"], AutoTokenizer.from_pretrained(folder), 64)
    assert perplexity_of_blocks(tuned_model, test).per_token == pytest.approx(tuned[1]["perplexity"], rel=1e-4)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--plain", "a", "--models", "b", "--judge", "c", "--seeds", "0", "0"], "seeds must differ"),
        (["--plain", "a", "--models", "a", "--judge", "c"], "each model is a row of its own"),
    ],
)
def test_an_adaptation_that_compares_nothing_is_told_before_anything_is_trained(given, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        run_recipe("adapt_domain", *given, "--output_dir", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_the_benchmark_of_real_time_has_the_rows_of_table_12(trained, tmp_path):
    folder, _ = trained
    given = ["--model", str(folder.parent / "ours-seed{seed}"), "--judge", str(folder.parent / "plain-seed0")]
    given += [
        "--dataset",
        small_text(),
        "--num_prefixes",
        "2",
        "--seeds",
        "0",
        "1",
        "--output",
        str(tmp_path / "o.json"),
    ]
    printed = run_recipe("benchmarks/real_time", *given)
    assert printed.count("| 70% + real time |") == 2
    assert "times as long as all phrases." in printed
    figures = json.loads((tmp_path / "o.json").read_text())["figures"]
    assert list(figures) == ["70%", "70% + real time", "70% + schedule", "100%"]
    assert all(70 <= columns["ready"] <= 100 for columns in figures["70% + real time"])
