"""The recipe that looks at embeddings: of models, of word vectors and of a classifier."""

import json

from hf_targets import load_corpus, train_bpe_tokenizer
from tests.programs import ROOT
from tests.recipes.running import run_recipe, small_text
from tests.tiny_backbones import make_backbone


def test_it_leaves_a_page_of_all_that_it_looked_at(tmp_path):
    backbone = make_backbone("gpt2")
    tokenizer = train_bpe_tokenizer(["the sea and the ship"] * 5, 260, 64)
    backbone.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    for part in (backbone, tokenizer):
        part.save_pretrained(tmp_path / "tiny")
    options = ("--dataset", small_text(), "--num_states", 40, "--word2vec", "true", "--output_dir", tmp_path / "out")
    printed = run_recipe("inspect_embeddings", "--models", tmp_path / "tiny", *options)
    assert "|  | tiny | word2vec | digits |" in printed
    numbers = json.loads((tmp_path / "out" / "results.json").read_text())
    assert numbers["tiny"]["num_rows"] > 250 and numbers["tiny"]["has_negative_direction"] is not None
    assert numbers["word2vec"]["margin"] is None and numbers["digits"]["has_negative_direction"]
    assert (tmp_path / "out" / "embeddings.md").read_text("utf-8").count("![") == 4


def test_the_translation_models_of_a_table_are_trained_and_their_decoders_states_read(tmp_path):
    smoke = ROOT / "recipes" / "settings" / "tables" / "train_translation" / "smoke.yaml"
    sizes = {"embedding_size": 16, "hidden_size": 16, "num_hidden_layers": 1}
    lstm = {"target": None, "attention": "eager", "config": {"model_type": "lstm_translation", **sizes}}
    rows = {"cosine": {"target": None, "cosine_weight": 1.0}, "lstm": lstm}
    small = {
        "rows": rows,
        "num_beams": 1,
        "max_train_pairs": 12,
        "max_eval_pairs": 2,
        "max_target_length": 64,
        "output_dir": str(tmp_path / "runs"),
    }
    (tmp_path / "table.yaml").write_text(json.dumps({"include": str(smoke), **small, "disable_tqdm": True}))
    given = {"table": str(tmp_path / "table.yaml"), "num_states": 40, "output_dir": str(tmp_path / "out")}
    (tmp_path / "inspected.yaml").write_text(json.dumps(given))
    printed = run_recipe("inspect_embeddings", settings=tmp_path / "inspected.yaml")
    assert "| cosine-seed0 | lstm-seed0 |" in printed
    numbers = json.loads((tmp_path / "out" / "results.json").read_text())
    for one in (numbers["cosine-seed0"], numbers["lstm-seed0"]):
        assert one["has_negative_direction"] is not None and one["norm_frequency_correlation"] is not None


def test_frequencies_of_subwords_and_words_are_drawn_over_their_rank(tmp_path):
    printed = run_recipe("tables/draw_frequencies", "--corpus", small_text(), "--output_dir", tmp_path)
    words = {word for line in load_corpus(small_text())["train"]["text"] for word in line.split()}
    assert f"| {len(words)} |" in printed and (tmp_path / "frequencies.png").stat().st_size > 1000
