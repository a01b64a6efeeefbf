"""Recipes of one model and the tables that compare several: what they leave is what they measured."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
import train_translation
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertModel,
)

from hf_targets import (
    MultiTokenForMaskedLM,
    MultiTokenForSeq2SeqLM,
    SemiAutoregressiveForCausalLM,
    encode_pairs,
    load_corpus,
    load_pairs,
    pack_blocks,
    train_masking_tokenizer,
    translate,
    translation_scores,
)
from hf_targets.backbones.reformer.repair import repair_reformer
from hf_targets.evaluation.perplexity import perplexity_of_blocks
from lab.dependence import block_dependence
from lab.runs import parse_table
from lab.settings import parse_mapping
from tests.lab.test_card import run_code
from tests.programs import ROOT
from tests.recipes.running import run_recipe, small_text

SMALL = ["--max_train_words", "600", "--disable_tqdm", "true", "--dataset", small_text()]


def test_the_table_of_knn_lm_builds_one_datastore_and_searches_it_in_each_way(finetuned, tmp_path):
    given = ["--model_name_or_path", finetuned[0] / "wdr-seed0", "--output_dir", tmp_path]
    printed = run_recipe("tables/knn_lm", *given)
    assert printed.count("| without cache |") == printed.count("| both |") == 2
    found = json.loads((tmp_path / "results.json").read_text())["results"]
    assert found["exact"]["without cache"] == found["IVF4,Flat"]["without cache"]


def test_multiword_tokens_are_measured_before_and_after_training_and_stay_as_plain_models(finetuned, tmp_path):
    given = ["--model_name_or_path", finetuned[0] / "plain-seed0", "--output_dir", tmp_path, "--disable_tqdm", "true"]
    printed = run_recipe("tables/multiword_tokens", *given, "--dataset", small_text(), "--learning_rate", 0.1)
    found = json.loads((tmp_path / "results.json").read_text())["results"]
    last = found["100 n-grams of 2 to 3 words"]
    assert 0 < last["new / old"] < 1 and last["fvt, as before"] != last["random, as before"]
    trained = found["fvt, trained"]
    assert trained["before"] == last["fvt"] != trained["after"] and f"| fvt | {last['fvt']:.2f} |" in printed
    kept, tokenizer = (kind.from_pretrained(tmp_path / "fvt-seed42") for kind in (AutoModelForCausalLM, AutoTokenizer))
    assert kept.get_input_embeddings().num_embeddings == len(tokenizer)


def test_systems_are_compared_on_the_same_texts_and_those_that_only_draft_write_the_first_ones(finetuned, tmp_path):
    given = ["--model", finetuned[0] / "plain-seed0", "--dataset", small_text(), "--output_dir", tmp_path]
    printed = run_recipe("tables/compare_systems", *given)
    found = json.loads((tmp_path / "results.json").read_text())["figures"]
    base, drafted = found["base"][0], found["document lookup"][0]
    assert drafted["generated_ppl"] == base["generated_ppl"] and drafted["bytes_a_pass"] >= base["bytes_a_pass"]
    assert found["kNN-LM"][0]["megabytes"] > base["megabytes"] == drafted["megabytes"]
    assert found["phrases"][0].keys() == {"seconds_a_text", "bytes_a_pass", "megabytes"}
    assert all(f"| {name} | {one[0]['diversity']:.2f} |" in printed for name, one in found.items() if len(one[0]) > 3)
    written = (tmp_path / "base-seed0.json").stat().st_mtime_ns
    untimed = run_recipe("tables/compare_systems", *given, "--only", "base", "--timed_prefixes", "0")
    assert (
        (tmp_path / "base-seed0.json").stat().st_mtime_ns == written and "CPU s" in printed and "CPU s" not in untimed
    )
    options = ["--kind", "lookup", "--options", '{"documents": true}']
    assert run_recipe("continue_texts", *given) == run_recipe("continue_texts", *given, *options)


def test_models_of_cog_and_retro_are_trained_and_compared_and_write_as_their_base_at_a_rate_of_0(finetuned, tmp_path):
    name, texts = str(finetuned[0] / "plain-seed0"), load_corpus(small_text())["train"]["text"]
    reader, sizes = train_masking_tokenizer(texts, 300), {"num_attention_heads": 2, "intermediate_size": 8}
    encoder = BertModel(BertConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1, **sizes))
    for part in (encoder, reader):
        part.save_pretrained(tmp_path / "reader")
    rows = {"base": {}, "CoG": {"kind": "cog", "encoder": str(tmp_path / "reader")}, "RETRO": {"kind": "retro"}}
    given = ["--dataset", small_text(), "--max_train_words", "300"]
    for one, options in ((rows["CoG"], "{}"), (rows["RETRO"], '{"chunk_length": 16}')):
        one["model"] = str(tmp_path / one["kind"])
        of_one = ["--kind", one["kind"], "--options", options, "--output_dir", one["model"], "--learning_rate", "0"]
        of_one += ["--max_test_words", "50", "--max_steps", "1"]
        of_one += ["--encoder", one["encoder"]] if "encoder" in one else []
        run_recipe("train_reader", "--model_name_or_path", name, *of_one, *given, "--disable_tqdm", "true")
        losses = json.loads(Path(one["model"], "results.json").read_text())
        assert losses["eval_test_loss"] == losses["before, eval_test_loss"]
    given += ["--model", name, "--rows", json.dumps(rows), "--output_dir", tmp_path]
    run_recipe("tables/compare_systems", *given)
    found = [one["diversity"] for (one,) in json.loads((tmp_path / "results.json").read_text())["figures"].values()]
    assert len(found) == 3 and len(set(found)) == 1


def results(folder, *names):
    return [json.loads((folder / name / "results.json").read_text()) for name in names]


REFORMER = {
    **{"hidden_size": 32, "num_attention_heads": 2, "attention_head_size": 16, "attn_layers": ["lsh"]},
    **{"feed_forward_size": 64, "lsh_attn_chunk_length": 8, "num_hashes": 2, "max_position_embeddings": 32},
    **{"axial_pos_embds": False, "is_decoder": True, "use_cache": False, "pad_token_id": 0, "eos_token_id": None},
}
TENSORIZED = {"hidden_size": 32, "num_hidden_layers": 1, "segment_length": 32, "head_dim": 8, "paper_leaky": True}


def test_the_small_decoders_have_a_table_with_all_ensemble_weights(tmp_path):
    printed = run_recipe("tables/train_small_lm", *SMALL, "--output_dir", tmp_path)
    for name, found in zip(
        ("plain", "simple-3", "wdr-3"), results(tmp_path, "plain-seed0", "simple-3-seed0", "wdr-3-seed0"), strict=True
    ):
        assert f"| {name} | {found['perplexity_0']:.1f} |" in printed
    assert "import hf_targets" not in run_code(tmp_path / "plain-seed0", tmp_path)


def test_a_small_reformer_is_read_later_as_it_was_measured(tmp_path):
    given = ["--model_type", "reformer", "--config", json.dumps(REFORMER), "--only", "wdr-3"]
    run_recipe("tables/train_small_lm", *SMALL, *given, "--output_dir", tmp_path)
    folder = tmp_path / "wdr-3-seed0"
    model = repair_reformer(AutoModelForCausalLM.from_pretrained(folder)).eval()
    blocks = pack_blocks(load_corpus(small_text())["test"], AutoTokenizer.from_pretrained(folder), 32)
    (found,) = results(folder, "")
    best = found["perplexity_ensemble" if found["ensemble_weight"] else "perplexity"]
    assert perplexity_of_blocks(model, blocks).per_token == pytest.approx(best, rel=1e-3)


def test_a_model_that_reads_what_it_predicts_has_no_perplexity_to_compare(tmp_path):
    given = ["--model_type", "tensorized_transformer", "--config", json.dumps(TENSORIZED), "--only", "plain"]
    printed = run_recipe("tables/train_small_lm", *SMALL, *given, "--output_dir", tmp_path)
    (found,) = results(tmp_path, "plain-seed0")
    assert "leaky_perplexity" in found and "perplexity" not in found
    assert "| leaky perplexity |" in printed


def test_a_search_tells_the_test_perplexity_of_the_chosen_row_alone(tmp_path):
    printed = run_recipe(
        "tables/search_multitoken",
        *SMALL,
        "--only",
        "plain",
        "wdr-2-alpha0.3",
        "wdr-2-alpha1",
        "--output_dir",
        tmp_path,
    )
    found = results(tmp_path, "wdr-2-alpha0.3-seed0", "wdr-2-alpha1-seed0")
    reached = {(n, w): one[f"validation_perplexity_{w:g}"] for n, one in enumerate(found) for w in (0.0, 0.2)}
    number, weight = min(reached, key=reached.__getitem__)
    assert f"**{reached[number, weight]:.2f} ({weight:g})**" in printed
    assert f"| {found[number][f'perplexity_{weight:g}']:.2f} |" in printed
    assert f"{found[1 - number]['perplexity_0']:.2f}" not in printed


def test_translation_models_are_left_as_they_were_scored(translated):
    folder, printed = translated
    plain, bag, wdr = results(folder, "plain-seed0", "bag-of-words-seed0", "wdr-seed0")
    assert "bleu_ensemble" in wdr and "bleu_ensemble" not in plain and plain["perplexity"] != bag["perplexity"]
    assert f"| wdr | {wdr['bleu']:.2f} | {wdr['bleu_ensemble']:.2f} |" in printed
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "wdr-seed0")
    tokenizer = AutoTokenizer.from_pretrained(folder / "wdr-seed0")
    assert isinstance(model, MultiTokenForSeq2SeqLM)
    test = load_pairs("documentation:reversed", source_lang="en", target_lang="reversed", max_eval_pairs=3)["test"]
    texts = translate(model, encode_pairs(test, tokenizer), tokenizer, num_beams=2, ensemble_weight=0.0)
    assert translation_scores(texts, test["target"]).chrf == pytest.approx(wdr["chrf"])
    run_code(folder / "plain-seed0", folder)


def test_the_mean_of_the_best_checkpoints_is_what_is_scored(tmp_path):
    given = ["--max_train_pairs", "12", "--max_eval_pairs", "2", "--disable_tqdm", "true", "--num_beams", "1"]
    given += ["--num_train_epochs", "2", "--save_total_limit", "2", "--max_source_length", "64"]
    given += ["--max_target_length", "64"]
    found = []
    for count, last in (("1", "false"), ("2", "true")):  # both of two are the best and the last
        how = ["--average_checkpoints", count, "--average_last", last, "--length_penalty", "0.6"]
        run_recipe("train_translation", *given, *how, "--output_dir", tmp_path / count)
        found += results(tmp_path, count)
    assert found[0]["perplexity"] != found[1]["perplexity"]


@pytest.mark.parametrize(("size", "width", "steps", "count"), [("", 512, 100_000, 5), ("_big", 1024, 300_000, 20)])
def test_the_transformers_with_cosine_regularisation_have_the_settings_of_vaswani_et_al(size, width, steps, count):
    file = ROOT / "recipes" / "settings" / "tables" / "train_translation" / f"wmt14_cosine{size}.yaml"
    table = parse_table(train_translation, arguments=[str(file), "--use_cpu", "true"])
    assert [row.get("cosine_weight", 0) for row in table.rows.values()] == [0, 1]
    setup, args = parse_mapping(
        {**table.settings, **table.rows["cosine"], "output_dir": "x"}, *train_translation.SETTINGS
    )
    config = setup.config
    assert (config["d_model"], config["decoder_ffn_dim"], args.max_steps) == (width, 4 * width, steps)
    assert args.learning_rate == pytest.approx((width * args.warmup_steps) ** -0.5, rel=2e-3)
    assert (args.warmup_steps, args.adam_beta1, args.adam_beta2, args.adam_epsilon) == (4000, 0.9, 0.98, 1e-9)
    assert args.label_smoothing_factor == 0.1 and not args.max_grad_norm and not args.weight_decay
    assert (setup.num_beams, setup.length_penalty) == (4, 0.6)
    assert setup.average_last and setup.average_checkpoints == args.save_total_limit == count


def test_masked_models_fill_masks_and_their_backbones_are_fine_tuned(tmp_path):
    given = [*SMALL, "--num_train_epochs", "1"]
    run_recipe("tables/train_masked_lm", *given, "--only", "plain", "wdr", "--output_dir", tmp_path)
    for name, kind in (("plain", BertForMaskedLM), ("wdr", MultiTokenForMaskedLM)):
        place = tmp_path / f"{name}-seed0"
        assert type(AutoModelForMaskedLM.from_pretrained(place)) is kind
        run_code(place, tmp_path)
        tuned = AutoModelForSequenceClassification.from_pretrained(place / "backbone", num_labels=2)
        tokenizer = AutoTokenizer.from_pretrained(place / "backbone")
        assert tokenizer.tokenize("the [MASK] is")[-2:] == [" [MASK]", "Ġis"]  # takes its space, as tokens do
        pair = tokenizer("The import", "a statement", return_tensors="pt")
        assert pair["token_type_ids"][0, -1] == 1 and tuned(**pair).logits.shape == (1, 2)


def test_models_of_blocks_write_and_their_dependence_is_measured(tmp_path, monkeypatch):
    few = partial(block_dependence, num_positions=2, num_samples=4)
    monkeypatch.setattr("lab.dependence.block_dependence", few)
    printed = run_recipe("tables/train_semi_autoregressive", *SMALL, "--output_dir", tmp_path)
    (found,) = results(tmp_path, "curves-3-seed0")
    words = [value for name, value in found.items() if name.startswith("perplexity_")]
    assert len(words) == 3 and found["perplexity"] == pytest.approx(sum(words) / 3)
    assert f"| curves-3 | {found['perplexity_1']:.2f} |" in printed
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "curves-3-seed0")
    assert isinstance(model, SemiAutoregressiveForCausalLM)
    assert "tokens_per_step=2" in run_code(tmp_path / "curves-3-seed0", tmp_path)
    base, again = tmp_path / "base", tmp_path / "again"
    for part in (model.backbone, AutoTokenizer.from_pretrained(tmp_path / "curves-3-seed0")):
        part.save_pretrained(base)
    still = ["--learning_rate", 0, "--max_steps", 1, "--model_name_or_path", base, "--output_dir", again]
    run_recipe("train_semi_autoregressive", *SMALL, *still)
    trained = SemiAutoregressiveForCausalLM.from_pretrained(again).backbone.state_dict()
    assert all(torch.equal(trained[name], weight) for name, weight in model.backbone.state_dict().items())
    dependence = json.loads((tmp_path / "dependence.json").read_text())
    assert [one["disturbance"] for one in dependence["words-3"]] == ["dropout"] * 3 + ["noise"] * 3
