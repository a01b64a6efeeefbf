"""The rows of a comparison of translation models, and what is wrong with others."""

import json

import pytest

from hf_targets import (
    MultiTokenForSeq2SeqLM,
    MultiTokenSeq2SeqTrainingArguments,
    train_bpe_tokenizer,
    translation_rows,
)
from tests.tiny_seq2seq import make_pair_backbone

TOKENIZER = train_bpe_tokenizer(["the sea and the ship"] * 5, 260, 64)


def test_rows_make_their_models():
    rows = translation_rows('{"plain": {}, "bow": {"bag_of_words": {}}, "wdr": {"ngram_size": 3, "loss_weight": 0.5}}')
    base = make_pair_backbone()
    assert rows["plain"].model_of(base, loss_weight=1.0) is base
    model = rows["wdr"].model_of(base, loss_weight=1.0)
    assert isinstance(model, MultiTokenForSeq2SeqLM)
    assert (model.config.ngram_size, model.config.loss_weight) == (3, 0.5)


def test_a_row_may_be_regularised_by_itself(tmp_path):
    kinds = {"plain": {}, "bags": {"bag_of_words": {}, "cosine_weight": 1}, "heads": {"ngram_size": 2}, "off": {}}
    rows = translation_rows(json.dumps({**kinds, "off": {"cosine_weight": 0}}))
    args = MultiTokenSeq2SeqTrainingArguments(str(tmp_path), report_to="none", use_cpu=True, cosine_weight=0.5)
    found = {}
    for name, row in rows.items():
        model = row.model_of(make_pair_backbone(), loss_weight=1.0)
        found[name] = row.trainer_of(TOKENIZER)(model=model, args=args, train_dataset=None).cosine_weight
    assert found == {"plain": 0.5, "bags": 1.0, "heads": 0.5, "off": 0.0} and args.cosine_weight == 0.5


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": {"cosine_weight": -1}}', r"row a: cosine_weight \(gamma\) must be 0 or more"),
        ('{"a": {"cosine_weight": true}}', "cosine_weight of row a must be a number, 0 or more, got True"),
        ("{}", "rows must name a model"),
        ("[1]", "rows must be a JSON object"),
        ('{"a": 3}', "row a must be an object"),
        ('{"a": {"bag_of_words": {}, "ngram_size": 2}}', "row a must have bags of words or heads, got both"),
        ('{"a": {"bag_of_words": []}}', "bag_of_words of row a must be an object"),
        ('{"a": {"bag_of_words": {"rise": "x"}}}', "row a: rise of bags of words must be a number, 0 or more, got 'x'"),
        ('{"a": {"bag_of_words": {"rise": -1}}}', "row a: rise of bags of words must be a number, 0 or more, got -1"),
        ('{"a": {"ngram_size": 1}}', "row a: ngram_size"),
        ('{"a": {"head": "nope"}}', "row a: head must be one of"),
        ('{"a": {"ngrams": 2}}', "row a has no such field: ngrams; there are ngram_size"),
        ('{"a": {"bag_of_words": {"weight": 2}}}', "row a has no such field: weight; there are first_weight"),
    ],
)
def test_wrong_rows_are_told(text, told):
    with pytest.raises(ValueError, match=told):
        translation_rows(text)
