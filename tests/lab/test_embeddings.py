"""What a page on embeddings is made of: frequencies, comparisons, a table, figures."""

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Image
from sklearn.datasets import load_digits
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lab.embeddings import (
    inspect_embeddings,
    inspection_rows,
    token_frequencies,
    train_digit_classifier,
    train_word_vectors,
)


def test_the_tokens_of_a_text_are_counted():
    words = Tokenizer(models.WordLevel({"?": 0, "a": 1, "b": 2}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    assert token_frequencies(["a b a", "", "b a c"], tokenizer, 5).tolist() == [1, 3, 2, 0, 0]


def test_word_vectors_are_learnt_from_text():
    texts = ["the sea and the ship\nthe ship and the sea\n"] * 20
    vectors = train_word_vectors(texts, size=8)
    assert vectors.shape == (4, 8) and torch.equal(vectors, train_word_vectors(texts, size=8))


@pytest.mark.parametrize("stand_in", [True, False], ids=["digits", "a data set"])
def test_a_classifier_of_digits_tells_them_apart_and_leaves_the_random_state(stand_in, tmp_path):
    if not stand_in:  # images of another size, as MNIST has them
        digits = load_digits()
        images = [np.kron(image * 15, np.ones((2, 2))).astype(np.uint8) for image in digits.images]
        features = Features({"image": Image(), "label": ClassLabel(10)})
        Dataset.from_dict({"image": images, "label": digits.target}, features=features).save_to_disk(tmp_path)
    state = torch.get_rng_state()
    weight, hidden, labels = train_digit_classifier("digits" if stand_in else str(tmp_path), num_steps=100)
    accuracy = ((hidden @ weight.T).argmax(dim=1) == labels).float().mean()  # without the biases of the last layer
    assert accuracy > 0.9 and weight.shape == (10, 64) and len(labels) == 500
    assert torch.equal(torch.get_rng_state(), state)


def test_frequencies_say_nothing_where_they_are_alike():
    rows = torch.eye(4) * torch.arange(1, 5)
    one = inspect_embeddings(rows, frequencies=torch.tensor([1, 2, 3, 4]))
    assert one.geometry.norm_frequency_correlation == pytest.approx(1)
    alike = inspect_embeddings(rows, frequencies=torch.full((4,), 2))
    assert alike.numbers()["norm_frequency_correlation"] is None
    assert "nan" not in str(inspection_rows({"one": alike}))
