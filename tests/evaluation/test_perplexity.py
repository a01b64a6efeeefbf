import math

import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.data.blocks import pack_blocks
from hf_targets.data.tokenization import train_bpe_tokenizer, word_level_tokenizer
from hf_targets.evaluation.perplexity import (
    BlockPerplexity,
    num_prefix_tokens,
    perplexity_of_blocks,
    perplexity_of_generated_texts,
)
from tests.tiny_backbones import FAMILIES, VOCAB, make_backbone, token_ids

MODEL = make_backbone("gpt2")
ROWS = [token_ids(length, seed=length).tolist() for length in (3, 9, 2, 6, 12)]
SENTENCES = ["the cat sat on the mat\n", "a dog\n", "the dog sat\n"]


@torch.no_grad()
def brute_force(model, ids):
    """The negative log-likelihood of each token but the first, from a pass of its own."""
    return [-model(torch.tensor([ids[:at]])).logits[0, -1].log_softmax(-1)[ids[at]].item() for at in range(1, len(ids))]


def padded(ids, left, right):
    return {
        "input_ids": [0] * left + ids + [0] * right,
        "attention_mask": [0] * left + [1] * len(ids) + [0] * right,
        "labels": [-100] * left + ids + [-100] * right,
    }


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "reformer"])
def test_a_perplexity_is_that_of_one_pass_a_token(family):
    model = make_backbone(family)
    nlls = [brute_force(model, ids) for ids in ROWS]
    blocks = perplexity_of_blocks(model, [{"input_ids": ids} for ids in ROWS], batch_size=2)
    texts = perplexity_of_generated_texts(model, ROWS, batch_size=2)
    assert blocks.num_tokens == texts.num_tokens == sum(map(len, nlls))
    assert blocks.nll == pytest.approx(sum(map(sum, nlls)), rel=1e-4)
    assert texts.nll == pytest.approx(blocks.nll)
    assert texts.perplexity == blocks.per_token == pytest.approx(math.exp(blocks.nll / blocks.num_tokens))
    assert texts.per_text == pytest.approx([math.exp(sum(nll) / len(nll)) for nll in nlls], rel=1e-4)


@given(
    paddings=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=5, max_size=5), size=st.integers(1, 6)
)
def test_padding_on_either_side_and_the_size_of_a_batch_change_nothing(paddings, size):
    plain = perplexity_of_blocks(MODEL, [padded(ids, 0, 0) for ids in ROWS])
    blocks = [padded(ids, *padding) for ids, padding in zip(ROWS, paddings, strict=True)] + [padded([], 1, 0)]
    found = perplexity_of_blocks(MODEL, blocks, batch_size=size)
    assert (found.num_tokens, found.num_words) == (plain.num_tokens, None)
    assert found.nll == pytest.approx(plain.nll, rel=1e-5)


@given(lengths=st.lists(st.integers(0, 1), min_size=5, max_size=5))
def test_the_tokens_of_a_prefix_are_read_and_not_counted(lengths):
    lengths = [length * (len(ids) - 1) for length, ids in zip(lengths, ROWS, strict=True)]
    nlls = [brute_force(MODEL, ids)[max(length - 1, 0) :] for ids, length in zip(ROWS, lengths, strict=True)]
    found = perplexity_of_generated_texts(MODEL, [torch.tensor(ids) for ids in ROWS], prefix_lengths=lengths)
    assert found.num_tokens == sum(map(len, nlls))
    assert found.nll == pytest.approx(sum(map(sum, nlls)), rel=1e-4)


@pytest.mark.parametrize("block_size", [2, 5, 9])
def test_blocks_of_a_text_make_each_token_but_the_first_a_target_once(block_size):
    texts = Dataset.from_dict({"text": SENTENCES})
    tokenizer = word_level_tokenizer(SENTENCES)
    found = perplexity_of_blocks(MODEL, pack_blocks(texts, tokenizer, block_size))
    stream = [id_ for text in SENTENCES for id_ in tokenizer(text)["input_ids"]]
    assert found.num_tokens == found.num_words == len(stream) - 1
    assert found.per_word == found.per_token
    heads = range(0, len(stream) - 1, block_size - 1)
    nll = sum(sum(brute_force(MODEL, stream[at : at + block_size])) for at in heads)
    assert found.nll == pytest.approx(nll, rel=1e-4)


def test_a_label_that_is_ignored_is_no_target():
    ids = ROWS[4]
    labels = [id_ if at % 3 else -100 for at, id_ in enumerate(ids)]
    found = perplexity_of_blocks(MODEL, [{"input_ids": ids, "labels": labels}])
    nlls = [nll for at, nll in enumerate(brute_force(MODEL, ids), start=1) if at % 3]
    assert (found.num_tokens, found.nll) == (len(nlls), pytest.approx(sum(nlls), rel=1e-4))


def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary():
    model = make_backbone("gpt2")
    torch.nn.init.zeros_(model.lm_head.weight)
    assert perplexity_of_blocks(model, [{"input_ids": ROWS[1]}]).per_token == pytest.approx(VOCAB)
    assert perplexity_of_generated_texts(model, ROWS).perplexity == pytest.approx(VOCAB)
    assert BlockPerplexity(nll=1e6, num_tokens=1, num_words=1).per_word == math.inf


def test_half_precision_is_judged_in_full_and_up_to_the_last_position():
    model, ids = make_backbone("gpt2").bfloat16(), token_ids(1, 64)
    found = perplexity_of_blocks(model, [{"input_ids": ids[0]}])
    with torch.no_grad():
        nll = torch.nn.functional.cross_entropy(model(ids).logits[0, :-1].double(), ids[0, 1:], reduction="sum")
    assert (found.num_tokens, found.nll) == (63, pytest.approx(nll.item(), rel=1e-6))


def test_neither_dropout_nor_a_gradient_is_on_for_the_measure():
    model = make_backbone("gpt2")
    model.register_forward_hook(lambda *call: asked.append(call[-1].logits.requires_grad))
    asked: list[bool] = []
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    model.train()
    found = [perplexity_of_generated_texts(model, ROWS).nll for _ in range(2)]
    assert found[0] == found[1] == pytest.approx(perplexity_of_generated_texts(MODEL, ROWS).nll)
    assert all(module.training for module in model.modules()) and not any(asked)


def test_variety_is_that_of_what_was_generated_by_hand():
    texts = [[9, 9, 9, 1, 2, 1, 2, 1], [9, 1, 2]]
    found = perplexity_of_generated_texts(MODEL, texts, prefix_lengths=[3, 1])
    assert found.entropy == pytest.approx(-(4 / 7 * math.log(4 / 7) + 3 / 7 * math.log(3 / 7)))
    halves = -(2 / 5 * math.log(2 / 5) + 3 / 5 * math.log(3 / 5))
    assert found.mean_entropy_of_texts == pytest.approx((halves + math.log(2)) / 2)
    assert perplexity_of_generated_texts(MODEL, [[9, 1], [8, 1]], prefix_lengths=1).entropy == 0


def test_strings_are_judged_by_their_tokens_and_prefixes_by_their_characters():
    tokenizer = train_bpe_tokenizer(SENTENCES, vocab_size=280)
    model = make_backbone("gpt2", vocab_size=280)
    texts = [text.strip() for text in SENTENCES]
    prefixes = ["the cat", "a", "the do"]
    lengths = num_prefix_tokens(texts, prefixes, tokenizer)
    for text, prefix, length in zip(texts, prefixes, lengths, strict=True):
        ids = tokenizer(text)["input_ids"]
        assert prefix.startswith(tokenizer.decode(ids[:length]))
        assert not prefix.startswith(tokenizer.decode(ids[: length + 1]))
    found = perplexity_of_generated_texts(model, texts, tokenizer, prefix_lengths=lengths)
    assert found == perplexity_of_generated_texts(model, tokenizer(texts)["input_ids"], prefix_lengths=lengths)
    assert num_prefix_tokens(texts, texts, tokenizer) == [len(ids) for ids in tokenizer(texts)["input_ids"]]


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        ([{"input_ids": [1, 2], "labels": [1, -100]}], "none"),
        ([{"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}], "mask"),
        ([{"input_ids": [1, 2], "labels": [1]}], "shapes"),
        ([{"input_ids": [1] * 65}], "64 positions"),
    ],
)
def test_blocks_that_cannot_be_judged_are_refused(blocks, says):
    with pytest.raises(ValueError, match=says):
        perplexity_of_blocks(MODEL, blocks)


@pytest.mark.parametrize(("texts", "lengths"), [([[1, 2]], 2), ([[1, 2]], -1), ([], 0), (["the cat"], 0)])
def test_generated_texts_that_cannot_be_judged_are_refused(texts, lengths):
    with pytest.raises(ValueError, match="text"):
        perplexity_of_generated_texts(MODEL, texts, prefix_lengths=lengths)


def test_a_text_without_its_prefix_is_refused():
    with pytest.raises(ValueError, match="prefix 'dog'"):
        num_prefix_tokens(["the cat"], ["dog"], train_bpe_tokenizer(SENTENCES, vocab_size=280))
