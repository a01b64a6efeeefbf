"""Positions that are given to a decoder: they are used, and in one thread alone."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hf_targets.backbones.encoder_decoder import decoder_positions, position_table
from tests.tiny_backbones import token_ids
from tests.tiny_seq2seq import make_pair_backbone


@pytest.mark.parametrize("family", ["marian", "bart"])
def test_positions_that_are_given_are_used_in_this_thread_alone(family):
    model = make_pair_backbone(family)
    inputs = {"input_ids": token_ids(2, 7), "decoder_input_ids": token_ids(2, 6, seed=1)}
    counted = torch.arange(6).expand(2, 6)

    def logits():
        with torch.no_grad():
            return model(**inputs).logits

    expected = logits()
    with decoder_positions(model, counted):
        torch.testing.assert_close(logits(), expected)
    with decoder_positions(model, counted + 3), ThreadPoolExecutor(1) as pool:
        assert not torch.allclose(logits(), expected)
        assert torch.equal(pool.submit(logits).result(), expected)
    table = position_table(model)
    assert not table._forward_pre_hooks and not table._forward_hooks
