"""The recipe that looks at embeddings: of models, of word vectors and of a classifier."""

import json

import pytest

from hf_targets import train_bpe_tokenizer
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


def test_what_it_cannot_do_it_says_and_leaves_nothing(tmp_path, capsys):
    for options in (("--classifier", "false"), ("--word2vec", "true")):
        with pytest.raises(SystemExit):
            run_recipe("inspect_embeddings", *options, "--output_dir", tmp_path / "out")
        assert "give" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
