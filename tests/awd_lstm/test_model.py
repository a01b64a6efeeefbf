import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from hf_targets import AwdLstmForCausalLM
from hf_targets.awd_lstm.layers import WeightDropLstm
from tests.awd_lstm.by_hand import lstm_by_hand, read_by_hand
from tests.awd_lstm.models import make_awd_lstm, make_config
from tests.tiny_backbones import make_backbone, token_ids

GREEDY = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}


def test_new_weights_are_those_of_the_published_program():
    model = AwdLstmForCausalLM(make_config(vocab_size=500, tie_word_embeddings=False))
    assert model.lm_head.bias.eq(0).all()
    for weight in (model.lm_head.weight, model.model.embed_tokens.weight):
        assert 0.09 < weight.abs().max() <= 0.1 and abs(weight.mean()) < 0.01
    for layer in model.model.layers:
        bound = layer.size**-0.5
        assert all(0.5 * bound < p.abs().max() <= bound for p in layer.parameters())


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_the_equations(tied):
    model, ids = make_awd_lstm(tie_word_embeddings=tied).double(), token_ids(3, 9)
    logits = model(ids).logits
    for row, text in zip(logits, ids, strict=True):
        torch.testing.assert_close(row, read_by_hand(model, text))


@given(data=st.data(), seed=st.integers(0, 99))
def test_padding_holes_and_packed_texts_are_read_as_each_text_alone(data, seed):
    """Texts of a row are packed with positions from 0, and padding is put anywhere."""
    model, time = make_awd_lstm().double(), 12
    ids = token_ids(3, time, seed=seed)
    mask = torch.tensor([[data.draw(st.booleans()) for _ in range(time)] for _ in range(3)])
    positions, texts = torch.zeros_like(ids), []
    for row in range(3):
        for column in mask[row].nonzero().flatten().tolist():
            if not (texts and texts[-1][0] == row) or data.draw(st.integers(0, 3)) == 0:
                texts.append((row, []))
            positions[row, column] = len(texts[-1][1])
            texts[-1][1].append(column)
        positions[row][~mask[row]] = data.draw(st.integers(0, 5))
    output = model(ids, attention_mask=mask.long(), position_ids=positions)
    state = output.past_key_values.layers
    last = {row: columns for row, columns in texts}
    for row, columns in texts:
        torch.testing.assert_close(output.logits[row, columns], read_by_hand(model, ids[row, columns]))
        if columns is last[row]:
            alone = model(ids[row : row + 1, columns]).past_key_values.layers
            for one, other in zip(alone, state, strict=True):
                torch.testing.assert_close(one.keys[0], other.keys[row])
                torch.testing.assert_close(one.values[0], other.values[row])
    for row in set(range(3)) - last.keys():
        assert all(layer.keys[row].eq(0).all() and layer.values[row].eq(0).all() for layer in state)


def test_a_row_of_padding_keeps_its_state():
    model, ids = make_awd_lstm().double(), token_ids(2, 8)
    cache = model(ids[:, :4]).past_key_values
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[1, 4:] = 0
    before = [layer.values[1].clone() for layer in cache.layers]
    model(ids[:, 4:6], attention_mask=mask, past_key_values=cache)
    assert all(torch.equal(layer.values[1], old) for layer, old in zip(cache.layers, before, strict=True))
    expected = model(ids[:1, :6]).past_key_values.layers
    for one, other in zip(cache.layers, expected, strict=True):
        torch.testing.assert_close(one.keys[0], other.keys[0])


def test_recurrent_weights_are_dropped_anew_in_each_call_of_training_and_only_there():
    layer = WeightDropLstm(make_config(weight_dropout=0.5), 5, 7).double()
    inputs, zeros = torch.randn(2, 6, 5, dtype=torch.float64), torch.zeros(2, 7, dtype=torch.float64)
    kept = layer.weight_hh.detach().clone()
    torch.manual_seed(1)
    outputs = layer(inputs, zeros, zeros)[0]
    torch.manual_seed(1)
    dropped = F.dropout(kept, 0.5)
    weights = [layer.weight_ih, dropped, layer.bias_ih, layer.bias_hh]
    for row, text in zip(outputs, inputs, strict=True):
        torch.testing.assert_close(row, lstm_by_hand(text, weights, (zeros[0], zeros[0]))[0])
    outputs.sum().backward()
    assert layer.weight_hh.grad[dropped == 0].eq(0).all() and layer.weight_hh.grad[dropped != 0].ne(0).all()
    assert not torch.equal(layer(inputs, zeros, zeros)[0], outputs)
    assert torch.equal(layer.weight_hh, kept)
    layer.eval()
    assert torch.equal(layer(inputs, zeros, zeros)[0], layer(inputs, zeros, zeros)[0])


@pytest.mark.parametrize("packed", [False, True])
def test_dropout_between_layers_is_the_same_in_all_steps_of_a_text_and_another_in_each_text(packed):
    model, ids = make_awd_lstm(hidden_dropout=0.5, output_dropout=0.5, input_dropout=0.5).train(), token_ids(2, 10)
    positions = torch.tensor([[*range(10)], [*range(4), *range(6)]]) if packed else None
    states = model(ids, position_ids=positions, output_hidden_states=True).hidden_states
    texts = (
        [(0, slice(0, 10)), (1, slice(0, 4)), (1, slice(4, 10))] if packed else [(0, slice(0, 10)), (1, slice(0, 10))]
    )
    for values in states:
        patterns = []
        for row, columns in texts:
            zero = values[row, columns] == 0
            assert torch.equal(zero, zero[:1].expand_as(zero))
            patterns.append(zero[0])
        assert all(0 < pattern.sum() < len(pattern) for pattern in patterns)
        assert not any(torch.equal(patterns[0], other) for other in patterns[1:])


def test_embedding_dropout_drops_words_wherever_they_stand():
    model, ids = make_awd_lstm(embedding_dropout=0.5).train(), token_ids(4, 30)
    embeds = model(ids, output_hidden_states=True).hidden_states[0]
    gone = embeds.eq(0).all(dim=-1)
    dropped = {int(word): bool(gone[ids == word].all()) for word in ids.unique()}
    assert all(bool(gone[ids == word].any()) == dropped[int(word)] for word in ids.unique())
    assert 0 < sum(dropped.values()) < len(dropped)
    kept = ~gone
    torch.testing.assert_close(embeds[kept], 2 * model.model.embed_tokens.weight[ids[kept]])


def test_the_loss_of_training_has_the_activations_of_the_paper_and_that_of_an_evaluation_has_not():
    model = make_awd_lstm(output_dropout=0.5, activation_weight=3.0, temporal_weight=0.5).double().train()
    ids, shifted = token_ids(2, 10), token_ids(2, 10, seed=5)
    torch.manual_seed(0)
    output = model(ids, shift_labels=shifted, skip_logits=False)
    torch.manual_seed(0)
    states = model.model(ids)
    nll = F.cross_entropy(output.logits.flatten(0, 1), shifted.flatten())
    activation = states.last_hidden_state.square().mean()
    temporal = states.undropped.diff(dim=1).square().mean(dim=-1).sum() / shifted.numel()
    torch.testing.assert_close(output.loss, nll + 3 * activation + 0.5 * temporal)
    model.eval()
    output = model(ids, shift_labels=shifted)
    torch.testing.assert_close(output.loss, F.cross_entropy(output.logits.flatten(0, 1), shifted.flatten()))


def test_assisted_generation_is_refused():
    model = make_awd_lstm()
    with pytest.raises(ValueError, match="assisted generation is not supported"):
        model.generate(token_ids(1, 6), assistant_model=model, **GREEDY)
    with pytest.raises(ValueError, match="choose another assistant_model"):
        make_backbone("llama").generate(token_ids(1, 6), assistant_model=model, **GREEDY)
