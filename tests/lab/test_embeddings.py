"""What a page on embeddings is made of: frequencies, comparisons, a table, figures."""

import warnings

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lab.embedding_figures import FIGURES, write_figures
from lab.embeddings import (
    inspect_embeddings,
    inspection_rows,
    read_word_vectors,
    text_batches,
    token_frequencies,
    train_digit_classifier,
    train_word_vectors,
)


def test_a_text_is_counted_and_cut_into_batches():
    words = Tokenizer(models.WordLevel({"?": 0, "a": 1, "b": 2}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    assert token_frequencies(["a b a", "", "b a c"], tokenizer, 5).tolist() == [1, 3, 2, 0, 0]
    batches = list(text_batches(["a b a", "b b b b", "a a"], tokenizer, length=2, batch_size=3))
    assert [batch["input_ids"].tolist() for batch in batches] == [[[1, 2], [1, 2], [2, 2]], [[2, 1]]]


def test_word_vectors_are_read_from_a_file_and_learnt_from_text(tmp_path):
    file = tmp_path / "vectors.txt"
    file.write_text("2 3\nsea 1 0 2\nship 0.5 1 0\n")
    assert read_word_vectors(str(file)).tolist() == [[1, 0, 2], [0.5, 1, 0]]
    texts = ["the sea and the ship\nthe ship and the sea\n"] * 20
    vectors = train_word_vectors(texts, size=8)
    assert vectors.shape == (4, 8) and torch.equal(vectors, train_word_vectors(texts, size=8))


def test_a_classifier_of_digits_tells_them_apart_and_leaves_the_random_state():
    state = torch.get_rng_state()
    weight, hidden, labels = train_digit_classifier(num_steps=150)
    accuracy = ((hidden @ weight.T).argmax(dim=1) == labels).float().mean()  # without the biases of the last layer
    assert accuracy > 0.9 and weight.shape == (10, 64) and len(labels) == 500
    assert torch.equal(torch.get_rng_state(), state)


def some_inspections():
    plain = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    digits = {"hidden_states": plain.abs(), "labels": torch.arange(30) % 3}
    return {
        "_a $cone": inspect_embeddings(
            plain + 2, frequencies=torch.arange(30), hidden_states=torch.cat([plain, -plain])
        ),
        "classes": inspect_embeddings(plain[:3], **digits),
    }


def test_the_table_has_what_is_known_of_each_model():
    found = some_inspections()
    cells = {name: row for name, *row in inspection_rows(found)}
    assert cells["embeddings"] == ["30", "3"] and cells["rank correlation of norm and frequency"][1] == ""
    none, exists = cells["a uniformly negative direction"]
    assert none == "no" and exists.startswith("yes, margin 0.")
    numbers = [one.numbers() for one in found.values()]
    assert [one["has_negative_direction"] for one in numbers] == [False, True]
    assert numbers[1]["norm_frequency_correlation"] is None
    assert inspect_embeddings(torch.eye(3)).numbers()["margin"] is None


def test_frequencies_say_nothing_where_they_are_alike():
    rows = torch.eye(4) * torch.arange(1, 5)
    one = inspect_embeddings(rows, frequencies=torch.tensor([1, 2, 3, 4]))
    assert one.geometry.norm_frequency_correlation == pytest.approx(1)
    alike = inspect_embeddings(rows, frequencies=torch.full((4,), 2))
    assert alike.numbers()["norm_frequency_correlation"] is None
    assert "nan" not in str(inspection_rows({"one": alike}))


def test_figures_are_drawn_of_what_is_known_whatever_models_are_called(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lines = write_figures(some_inspections(), tmp_path)
    assert {file.stem for file in tmp_path.glob("*.png")} == set(FIGURES) and lines.count("![") == 4
    (tmp_path / "other").mkdir()
    write_figures({"one": inspect_embeddings(torch.eye(5))}, tmp_path / "other")
    assert not (tmp_path / "other" / "norms.png").exists()
