"""The figure of word differences, and how diverse its targets are."""

import json

import pytest
import torch

from lab.differences import TargetVectors, target_diversity, target_vectors
from tests.recipes.running import run_recipe, small_text
from tests.small_tokenizers import BPE
from tests.tiny_models import WORDS, make_backbone

SENTENCES = ["w1 w2 w1 w3", "w4 w2 w5 w2 w1 w2"]


def test_differences_are_drawn_with_their_points(tmp_path):
    arguments = ("--dataset", small_text(), "--num_sentences", 5, "--perplexity", 5, "--output_dir", tmp_path)
    printed = run_recipe("tables/draw_differences", *arguments)
    levels = json.loads((tmp_path / "differences.json").read_text())["levels"]
    assert [one["level"] for one in levels] == [0, 1, 2]
    assert all(len(one["points"]) == len(one["words"]) for one in levels)
    assert (tmp_path / "differences.png").read_bytes().startswith(b"\x89PNG")
    assert "| level | targets | mean cosine | variance within words |" in printed


def test_a_difference_is_that_of_the_words_it_names_and_sentences_do_not_mix():
    model = make_backbone("gpt2")
    rows = model.get_output_embeddings().weight.detach()
    embeddings, level_1, _ = target_vectors(model, WORDS, SENTENCES)
    for vector, word, before in zip(level_1.vectors, level_1.words, level_1.before, strict=True):
        after, earlier = (rows[WORDS.convert_tokens_to_ids(name)] if name else 0 for name in (word, before))
        torch.testing.assert_close(vector, after - earlier)
    assert len(embeddings.words) == 10 and level_1.before.count(None) == 2


def test_embeddings_have_no_variance_within_words_and_differences_have():
    shares = [target_diversity(one).within_words for one in target_vectors(make_backbone("gpt2"), WORDS, SENTENCES)]
    assert shares[0] == pytest.approx(0, abs=1e-9)
    assert 0 < shares[1] <= 1 and 0 < shares[2] <= 1


def test_the_mean_cosine_is_that_of_all_pairs():
    vectors = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    unit = torch.nn.functional.normalize(vectors.double(), dim=1)
    pairs = [(unit[i] @ unit[j]).item() for i in range(6) for j in range(6) if i != j]
    found = target_diversity(TargetVectors(0, vectors, list("abcabc"), [None] * 6))
    assert found.mean_cosine == pytest.approx(sum(pairs) / len(pairs))


def test_tokens_that_differ_in_space_alone_are_different_words():
    model = make_backbone("gpt2", vocab_size=len(BPE))
    levels = target_vectors(model, BPE, ["the cat the mat\n\n caté", "cat  the"])
    assert target_diversity(levels[0]).within_words == pytest.approx(0, abs=1e-9)
    ids = {id_ for text in ("the cat the mat\n\n caté", "cat  the") for id_ in BPE(text)["input_ids"]}
    assert len(set(levels[0].words)) == len(ids) and all(levels[0].words)
