"""Measures of plain causal models take a model around a backbone, too."""

import numpy as np
import pytest
from torch.nn.functional import cross_entropy

from hf_targets.data.tokenization import word_level_tokenizer
from hf_targets.evaluation.mauve import text_features
from hf_targets.evaluation.perplexity import perplexity_of_blocks
from tests.model_cases import every_causal_wrapper_class
from tests.tiny_backbones import VOCAB, token_ids
from tests.trainer_runs import with_dropout

WORDS = word_level_tokenizer([" ".join(f"w{number}" for number in range(VOCAB - 3)) + "\n"])


@every_causal_wrapper_class
def test_a_perplexity_is_that_of_the_next_tokens(case):
    model, ids = case.make(), token_ids(9)
    found = perplexity_of_blocks(model, [{"input_ids": ids.tolist()}])
    expected = cross_entropy(model(ids[None]).logits[0, :-1], ids[1:], reduction="sum")
    assert found.num_tokens == 8 and found.nll == pytest.approx(expected.item())


@every_causal_wrapper_class
def test_features_of_texts_are_those_of_the_backbone_without_dropout(case):
    model, texts = case.make(), ["w1 w2 w3", "w4", "w5 w6"]
    expected = text_features(texts, model.backbone, WORDS)
    assert expected.shape == (3, 32) and not np.allclose(expected[0], expected[1])
    found = text_features(texts, with_dropout(model, 0.5).train(), WORDS)
    assert np.allclose(found, expected, atol=1e-5) and model.training
