"""The recipe that looks at embeddings: of models, of word vectors and of a classifier; and what it refuses."""

import json

import pytest

from hf_targets import train_bpe_tokenizer
from tests.recipes.running import run_recipe, small_text
from tests.tiny_backbones import make_backbone


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    backbone = make_backbone("gpt2")
    tokenizer = train_bpe_tokenizer(["the sea and the ship"] * 5, 260, 64)
    backbone.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    for part in (backbone, tokenizer):
        part.save_pretrained(folder)
    return folder


def test_it_leaves_a_page_of_all_that_it_looked_at(model, tmp_path):
    options = ("--dataset", small_text(), "--num_states", 40, "--word2vec", "true", "--output_dir", tmp_path / "out")
    printed = run_recipe("inspect_embeddings", str(model), *options)
    assert "|  | tiny | word2vec | digits |" in printed
    numbers = json.loads((tmp_path / "out" / "embeddings.json").read_text())
    assert numbers["tiny"]["num_rows"] > 250 and numbers["tiny"]["has_negative_direction"] is not None
    assert numbers["word2vec"]["margin"] is None and numbers["digits"]["has_negative_direction"]
    page = (tmp_path / "out" / "embeddings.html").read_text("utf-8")
    assert page.count("<img ") == 4 and str(tmp_path) not in page


@pytest.mark.parametrize(
    "options, told",
    [
        (("--classifier", "false"), "there must be embeddings to look at; give a model"),
        (("--word2vec", "true"), "word2vec is trained on a text; give --dataset"),
        (("--num_states", "-1"), "num_states must be 0 or more, got -1"),
        (("--models", "nowhere"), "there is no language model at 'nowhere'"),
    ],
)
def test_what_it_cannot_do_it_says_and_leaves_nothing(options, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        run_recipe("inspect_embeddings", *options, "--output_dir", tmp_path / "out")
    assert not (tmp_path / "out").exists()
