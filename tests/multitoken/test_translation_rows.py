"""The rows of a comparison of translation models, and what is wrong with others."""

import pytest

from hf_targets import MultiTokenForSeq2SeqLM, translation_rows
from tests.tiny_seq2seq import make_pair_backbone


def test_rows_make_their_models():
    rows = translation_rows('{"plain": {}, "bow": {"bag_of_words": {}}, "wdr": {"ngram_size": 3, "loss_weight": 0.5}}')
    base = make_pair_backbone()
    assert rows["plain"].model_of(base, loss_weight=1.0) is base
    model = rows["wdr"].model_of(base, loss_weight=1.0)
    assert isinstance(model, MultiTokenForSeq2SeqLM)
    assert (model.config.ngram_size, model.config.loss_weight) == (3, 0.5)


@pytest.mark.parametrize(
    ("text", "told"),
    [
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
