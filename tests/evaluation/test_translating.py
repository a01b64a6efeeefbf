"""Translations of a whole test set are those of each pair alone, in the order of the pairs."""

import pytest

from hf_targets import translate
from tests.multitoken.test_seq2seq_trainer import TOKENIZER, make, rows


@pytest.mark.parametrize("settings", [{"num_beams": 1}, {"num_beams": 3}, {"num_beams": 1, "ensemble_weight": 0.4}])
def test_they_are_those_of_each_pair_alone(settings):
    model, data = make().double().eval(), rows(8)
    together = translate(model, data, TOKENIZER, batch_tokens=40, max_new_tokens=9, **settings)
    alone = [translate(model, data.select([row]), TOKENIZER, max_new_tokens=9, **settings)[0] for row in range(8)]
    assert together == alone
    assert len(set(together)) > 1


def test_the_model_keeps_its_mode():
    model = make().train()
    translate(model, rows(1), TOKENIZER, num_beams=1, max_new_tokens=2)
    assert model.training
