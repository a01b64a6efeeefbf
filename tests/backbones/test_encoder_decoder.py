"""Encoder-decoder models: what their decoders may read, and positions that are given to them, in one thread alone."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

from hf_targets import MultiTokenForSeq2SeqLM
from hf_targets.backbones.encoder_decoder import decoder_positions, position_table
from tests.tiny_backbones import token_ids
from tests.tiny_seq2seq import make_pair_backbone


def test_a_model_of_experts_is_wrapped():
    config = SwitchTransformersConfig(
        vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, num_experts=2,
        num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, decoder_start_token_id=0,
    )  # fmt: skip
    base, inputs = SwitchTransformersForConditionalGeneration(config).eval(), {"input_ids": token_ids(2, 7)}
    inputs["decoder_input_ids"] = token_ids(2, 6, seed=1)
    model = MultiTokenForSeq2SeqLM.from_base(base).eval()
    assert torch.equal(model(**inputs).logits, base(**inputs).logits)


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
