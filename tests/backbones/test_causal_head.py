"""What the causal models on layers of ours share: caches, padding in generation, and what they refuse."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from transformers import DynamicCache, GPT2Config, StaticCache

from hf_targets import AwdLstmConfig, AwdLstmForCausalLM, TensorizedTransformerConfig, TensorizedTransformerForCausalLM
from tests.awd_lstm import by_hand as lstm_by_hand
from tests.awd_lstm.models import make_awd_lstm
from tests.tensorized_transformer import by_hand as tensorized_by_hand
from tests.tensorized_transformer.models import make_tensorized
from tests.tiny_backbones import token_ids

GREEDY = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None}
MAKERS = {"lstm": make_awd_lstm, "tensorized": make_tensorized}
BY_HAND = {"lstm": lstm_by_hand.read_by_hand, "tensorized": tensorized_by_hand.read_by_hand}
every_kind = pytest.mark.parametrize("kind", MAKERS)


@pytest.mark.parametrize(
    ("model", "config", "count"),
    [
        (AwdLstmForCausalLM, AwdLstmConfig(vocab_size=10000, input_dropout=0.4, hidden_dropout=0.25), 24_221_600),
        (AwdLstmForCausalLM, AwdLstmConfig(), 33_556_078),
        (TensorizedTransformerForCausalLM, TensorizedTransformerConfig(), 6_715_252),
        (TensorizedTransformerForCausalLM, TensorizedTransformerConfig(paper_leaky=True), 6_715_252),
    ],
)
def test_the_published_sizes_have_the_published_numbers_of_parameters(model, config, count):
    with torch.device("meta"):
        assert model(config).num_parameters() == count


@settings(max_examples=15)
@given(
    kind=st.sampled_from(tuple(MAKERS)),
    cuts=st.lists(st.integers(1, 14), unique=True, max_size=6),
    window=st.booleans(),
    padding=st.integers(0, 5),
)
def test_a_text_read_in_parts_is_the_text_read_at_once(kind, cuts, window, padding):
    model, ids = MAKERS[kind]().double(), token_ids(2, 15)
    mask = torch.ones_like(ids)
    mask[0, :padding] = 0
    cache = DynamicCache(config=model.config) if window and kind == "tensorized" else DynamicCache()
    whole, ends = model(ids, attention_mask=mask).logits, [*sorted(cuts), 15]
    parts = [
        model(ids[:, begin:end], attention_mask=mask[:, :end], past_key_values=cache).logits
        for begin, end in zip([0, *ends], ends, strict=False)
    ]
    kept = mask.bool()
    torch.testing.assert_close(torch.cat(parts, dim=1)[kept], whole[kept])
    assert cache.get_seq_length() == 15


@every_kind
@pytest.mark.usefixtures("clear_choices")
def test_generation_passes_over_padding_and_is_the_same_without_a_cache(kind):
    model, ids = MAKERS[kind]().double(), token_ids(2, 9)
    mask = torch.ones_like(ids)
    ids[0, :4], mask[0, :4] = 0, 0
    written = model.generate(ids, attention_mask=mask, **GREEDY)
    for row, start in ((0, 4), (1, 0)):
        text = ids[row, start:]
        for _ in range(GREEDY["max_new_tokens"]):
            text = torch.cat([text, BY_HAND[kind](model, text)[-1:].argmax(dim=-1)])
        assert torch.equal(written[row, start:], text)
    for way in ({"use_cache": False}, {"past_key_values": DynamicCache()}):
        assert torch.equal(model.generate(ids, attention_mask=mask, **way, **GREEDY), written)
    beams = [model.generate(ids, attention_mask=mask, num_beams=3, use_cache=use, **GREEDY) for use in (True, False)]
    assert torch.equal(*beams)


@every_kind
@pytest.mark.usefixtures("clear_choices")
def test_generation_goes_on_from_the_state_of_an_earlier_call(kind):
    model, ids = MAKERS[kind]().double(), token_ids(1, 9)
    first = model.generate(ids, return_dict_in_generate=True, **GREEDY)
    more = torch.cat([first.sequences, token_ids(1, 3, seed=7)], dim=1)
    expected = model.generate(more, **GREEDY)
    assert torch.equal(model.generate(more, past_key_values=first.past_key_values, **GREEDY), expected)


@every_kind
def test_the_loss_of_an_evaluation_is_the_cross_entropy_of_the_next_token(kind):
    model, ids, shifted = MAKERS[kind]().double(), token_ids(2, 10), token_ids(2, 10, seed=5)
    output = model(ids, shift_labels=shifted)
    torch.testing.assert_close(output.loss, F.cross_entropy(output.logits.flatten(0, 1), shifted.flatten()))
    assert output.past_key_values is None and model.train()(ids, labels=ids).logits is None


@every_kind
def test_a_cache_of_another_class_is_refused(kind):
    cache = StaticCache(config=GPT2Config(n_layer=1, n_embd=8, n_head=2), max_cache_len=16)
    with pytest.raises(ValueError, match="past_key_values"):
        MAKERS[kind]()(token_ids(2, 6), past_key_values=cache)


def test_states_of_another_lstm_or_of_other_rows_are_refused():
    model, ids = make_awd_lstm(), token_ids(2, 6)
    for other in (make_awd_lstm(hidden_size=20), make_awd_lstm(num_hidden_layers=1)):
        with pytest.raises(ValueError, match="past_key_values"):
            model(ids, past_key_values=other(ids).past_key_values)
    with pytest.raises(ValueError, match="1 rows"):
        model(ids[:1], past_key_values=model(ids).past_key_values)


@every_kind
def test_embeddings_of_another_width_and_masks_of_four_dimensions_are_refused(kind):
    with pytest.raises(ValueError, match="inputs_embeds"):
        MAKERS[kind]()(inputs_embeds=torch.randn(2, 6, 5))
    with pytest.raises(ValueError, match="attention_mask"):
        MAKERS[kind]()(token_ids(2, 6), attention_mask=torch.ones(2, 1, 6, 6))


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        (AwdLstmConfig, "weight_dropout", 1.0),
        (AwdLstmConfig, "num_hidden_layers", 0),
        (AwdLstmConfig, "temporal_weight", float("nan")),
        (AwdLstmConfig, "hidden_size", 1.5),
        (TensorizedTransformerConfig, "segment_length", 1),
        (TensorizedTransformerConfig, "hidden_size", 31),
        (TensorizedTransformerConfig, "dropout", 1.0),
        (TensorizedTransformerConfig, "head_dim", 0),
        (TensorizedTransformerConfig, "initializer_range", -1.0),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(config, field, value):
    with pytest.raises(ValueError, match=f"{field} must be"):
        config(**{field: value})
