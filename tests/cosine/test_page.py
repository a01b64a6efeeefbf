"""What a page on embeddings is made of: hidden states, frequencies, comparisons, figures."""

import base64
import re
import warnings

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_targets import (
    inspect_embeddings,
    inspection_columns,
    inspection_numbers,
    read_word_vectors,
    softmax_inputs,
    text_batches,
    token_frequencies,
    train_digit_classifier,
    train_word_vectors,
    write_inspection,
)
from tests.masked_diffusion.models import make_mdlm, masked_ids
from tests.tiny_backbones import make_backbone, token_ids
from tests.tiny_models import make_model
from tests.tiny_seq2seq import make_pair_backbone


def word_tokenizer(*words):
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=words[0])


@pytest.mark.parametrize("make", [lambda: make_backbone("gpt2"), lambda: make_backbone("opt"), make_model])
def test_softmax_inputs_give_the_logits(make):
    model, ids = make(), token_ids(3, 7)
    found = softmax_inputs(model, [{"input_ids": ids}], 99)
    logits = model(ids).logits.flatten(0, 1)
    torch.testing.assert_close(model.get_output_embeddings()(found), logits)


def test_softmax_inputs_of_masked_diffusion_are_its_last_hidden_states():
    model, ids = make_mdlm(), masked_ids(2, 9)
    found = softmax_inputs(model, [{"input_ids": ids}], 99)
    assert torch.equal(found, model(ids, output_hidden_states=True).hidden_states[-1].flatten(0, 1))
    output = model.get_output_embeddings()
    assert not output._forward_pre_hooks and not model._forward_hooks
    log_p = (found @ output.weight.T + output.bias)[:, :-1].log_softmax(-1)  # the mask is impossible
    is_masked = (ids == model.config.mask_token_id).flatten()
    torch.testing.assert_close(log_p[is_masked], model(ids).logits.flatten(0, 1)[is_masked][:, :-1])


def test_padding_has_no_state_and_so_many_are_read_as_are_asked_for():
    model, ids, mask = make_backbone("gpt2").train(), token_ids(2, 5), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    batches = [{"input_ids": ids, "attention_mask": mask}] * 3
    found = softmax_inputs(model, batches, 99)
    assert len(found) == 24 and model.training
    assert torch.equal(softmax_inputs(model, batches, 10), found[:10])
    assert not model.get_output_embeddings()._forward_pre_hooks


def test_what_has_no_states_is_refused():
    for model, told in ((make_pair_backbone(), "an encoder"), (make_backbone("llama").model, "no output embeddings")):
        with pytest.raises(ValueError, match=told):
            softmax_inputs(model, [], 3)
    with pytest.raises(ValueError, match="num_states must be 1 or more, got 0"):
        softmax_inputs(make_backbone("gpt2"), [], 0)


def test_a_text_is_counted_and_cut_into_batches():
    tokenizer = word_tokenizer("?", "a", "b")
    assert token_frequencies(["a b a", "", "b a c"], tokenizer, 5).tolist() == [1, 3, 2, 0, 0]
    with pytest.raises(ValueError, match="token ids must be below 2, got 2"):
        token_frequencies(["a b"], tokenizer, 2)
    batches = list(text_batches(["a b a", "b b b b", "a a"], tokenizer, length=2, batch_size=3))
    assert [batch["input_ids"].tolist() for batch in batches] == [[[1, 2], [1, 2], [2, 2]], [[2, 1]]]


def test_word_vectors_are_read_from_a_file_and_learnt_from_text(tmp_path):
    file = tmp_path / "vectors.txt"
    file.write_text("2 3\nsea 1 0 2\nship 0.5 1 0\n")
    assert read_word_vectors(file).tolist() == [[1, 0, 2], [0.5, 1, 0]]
    file.write_text("no vectors here\n")
    with pytest.raises(
        ValueError,
        match=r"vectors.txt must have word vectors in the format of word2vec .*: a first line with their number",
    ):
        read_word_vectors(file)
    texts = ["the sea and the ship\nthe ship and the sea\n"] * 20
    vectors = train_word_vectors(texts, size=8)
    assert vectors.shape == (4, 8) and torch.equal(vectors, train_word_vectors(texts, size=8))
    with pytest.raises(ValueError, match="no word occurs 100 times"):
        train_word_vectors(texts[:1], min_count=100)


def test_a_classifier_of_digits_tells_them_apart_and_leaves_the_random_state():
    state = torch.get_rng_state()
    digits = train_digit_classifier(num_steps=150)
    assert digits.accuracy > 0.9 and digits.weight.shape == (10, 64) and len(digits.labels) == 500
    assert torch.equal(torch.get_rng_state(), state)


def some_inspections():
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(30, 4, generator=generator)
    digits = {"hidden_states": plain.abs(), "labels": torch.arange(30) % 3}
    return {
        "<cone>": inspect_embeddings(plain + 2, frequencies=torch.arange(30), hidden_states=torch.cat([plain, -plain])),
        "classes": inspect_embeddings(plain[:3], **digits),
    }


def test_the_table_has_what_is_known_of_each_model():
    found = some_inspections()
    heads, rows = inspection_columns(found)
    cells = {row[0]: row[1:] for row in rows}
    assert heads == ("", "<cone>", "classes") and cells["embeddings"] == ["30", "3"]
    assert cells["rank correlation of norm and frequency"][1] == "" and "rows of zeros" not in cells
    [none, exists] = cells["a uniformly negative direction"]
    assert none == "no" and re.fullmatch(r"yes, margin 0\.\d{3}", exists)
    numbers = [inspection_numbers(one) for one in found.values()]
    assert [one["has_negative_direction"] for one in numbers] == [False, True]
    assert numbers[1]["norm_frequency_correlation"] is None
    assert inspection_numbers(inspect_embeddings(torch.eye(3)))["margin"] is None


def test_a_page_is_complete_in_itself_and_leaves_its_figures(tmp_path):
    page = write_inspection(some_inspections(), tmp_path / "out", footer="python inspect.py")
    text = page.read_text("utf-8")
    names = {"projections", "singular_values", "cosines", "norms"}
    assert {file.stem for file in (tmp_path / "out").glob("*.png")} == names
    images = [base64.b64decode(data) for data in re.findall(r'src="data:image/png;base64,([^"]+)" alt="\w', text)]
    assert sorted(images) == sorted((tmp_path / "out" / f"{name}.png").read_bytes() for name in names)
    assert "&lt;cone&gt;" in text and "<cone>" not in text and "python inspect.py" in text
    write_inspection({"one": inspect_embeddings(torch.eye(5))}, tmp_path / "other")
    assert not (tmp_path / "other" / "norms.png").exists()


def test_frequencies_may_be_a_list_and_say_nothing_where_they_are_alike():
    rows = torch.eye(4) * torch.arange(1, 5)
    assert inspect_embeddings(rows, frequencies=[1, 2, 3, 4]).geometry.norm_frequency_correlation == pytest.approx(1)
    alike = inspect_embeddings(rows, frequencies=[2, 2, 2, 2])
    assert inspection_numbers(alike)["norm_frequency_correlation"] is None
    assert "nan" not in str(inspection_columns({"one": alike}))


def test_states_that_do_not_belong_to_the_embeddings_are_refused():
    with pytest.raises(ValueError, match=r"hidden states must be \(states, 4\) as the embeddings are, got \(3, 5\)"):
        inspect_embeddings(torch.eye(4), hidden_states=torch.ones(3, 5))
    with pytest.raises(ValueError, match=r"a label for each of 3 states, got shape \(2,\)"):
        inspect_embeddings(torch.eye(4), hidden_states=torch.ones(3, 4), labels=torch.zeros(2))
    states = torch.ones(3, 4, requires_grad=True)
    assert not inspect_embeddings(torch.eye(4), hidden_states=states, labels=torch.zeros(3)).hidden_states.requires_grad


def test_odd_names_are_drawn_as_they_are(tmp_path):
    names = ("$\\foo$", "_hidden", *(f"model {number}" for number in range(30)))
    found = dict.fromkeys(names, inspect_embeddings(torch.eye(5)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_inspection(found, tmp_path)


def test_a_page_of_nothing_is_refused_and_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="must be embeddings to show, got none"):
        write_inspection({}, tmp_path / "out")
    assert not (tmp_path / "out").exists()
