import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets import TensorizedTransformerForCausalLM
from hf_targets.tensorized_transformer.backbone import reach_of
from tests.tensorized_transformer.models import SEGMENT, make_config, make_tensorized
from tests.tiny_backbones import token_ids
from tests.trainer_runs import CHECKPOINTING

GREEDY = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None}


def test_new_weights_are_those_of_the_published_program_and_cores_those_of_the_paper():
    model = TensorizedTransformerForCausalLM(make_config(vocab_size=500, hidden_size=64, intermediate_size=256))
    for layer in model.model.layers:
        assert 0 <= layer.attention.core.min() < 0.5 < layer.attention.core.max() < 1
        for weight in (layer.attention.qkv_proj.weight, layer.attention.out_proj.weight, layer.up_proj.weight):
            assert 0.015 < weight.std() < 0.025 and abs(weight.mean()) < 0.005
        assert layer.up_proj.bias.eq(0).all() and layer.attention_norm.bias.eq(0).all()
        assert 0.01 < layer.attention_norm.weight.std() < 0.03 and 0.98 < layer.attention_norm.weight.mean() < 1.02
    assert model.lm_head.bias.eq(0).all() and model.lm_head.weight is model.model.embed_tokens.weight
    for bias in (model.model.content_bias, model.model.position_bias):
        assert 0 < bias.abs().max() < 0.1


@given(data=st.data(), seed=st.integers(0, 99))
def test_padding_and_packed_texts_are_read_as_each_text_alone(data, seed):
    model, time = make_tensorized().double(), 14
    ids = token_ids(3, time, seed=seed)
    mask, positions, texts = torch.zeros_like(ids), torch.zeros_like(ids), []
    for row in range(3):
        at = data.draw(st.integers(0, 4))
        while at < time and data.draw(st.integers(0, 4)):
            length = data.draw(st.integers(1, time - at))
            columns = slice(at, at + length)
            mask[row, columns], positions[row, columns] = 1, torch.arange(length)
            texts.append((row, columns))
            at += length
    logits = model(ids, attention_mask=mask, position_ids=positions).logits
    for row, columns in texts:
        torch.testing.assert_close(logits[row, columns], model(ids[row : row + 1, columns]).logits[0])
    assert logits.isfinite().all()


@settings(max_examples=15)
@given(hidden=st.sets(st.integers(0, 9), max_size=9), seed=st.integers(0, 99))
def test_what_a_mask_hides_is_not_read_wherever_it_stands(hidden, seed):
    model, columns = make_tensorized().double(), sorted(hidden)
    ids = token_ids(2, 10, seed=seed)
    other, mask = ids.clone(), torch.ones_like(ids)
    other[:, columns], mask[:, columns] = token_ids(2, len(columns), seed=seed + 1), 0
    kept = mask.bool()
    expected = model(ids, attention_mask=mask).logits[kept]
    torch.testing.assert_close(model(other, attention_mask=mask).logits[kept], expected)
    begins = next((column for column in range(10) if column not in hidden), 10)
    torch.testing.assert_close(
        model(ids[:, begins:], attention_mask=mask[:, begins:]).logits[kept[:, begins:]], expected
    )


def test_a_cache_holds_what_the_next_position_reads_and_no_more():
    cache = make_tensorized()(token_ids(2, 15)).past_key_values
    for layer in cache.layers:
        assert layer.keys.shape == layer.values.shape == (2, 1, SEGMENT - 1, 6)


@pytest.mark.usefixtures("clear_choices")
def test_an_assistant_drafts_and_the_text_is_the_same():
    model, ids = make_tensorized().double(), token_ids(1, 9)
    expected = model.generate(ids, **GREEDY)
    for assistant in (make_tensorized(seed=1).double(), model):
        assert torch.equal(model.generate(ids, assistant_model=assistant, **GREEDY), expected)


@pytest.mark.parametrize("fields", [{"dropout": 0.5}, {"dropout": 0.5, "paper_leaky": True}])
def test_dropout_is_drawn_anew_in_training_and_is_off_in_evaluation(fields):
    model, ids = make_tensorized(**fields), token_ids(2, 8)
    assert torch.equal(model(ids).logits, model(ids).logits)
    one, other = (model.train()(ids, output_hidden_states=True) for _ in range(2))
    assert not torch.isclose(one.logits, other.logits).all()
    assert one.hidden_states[0].eq(0).float().mean() == pytest.approx(0.5, abs=0.1)


def test_gradient_checkpointing_in_training_takes_no_cache():
    model, ids = make_tensorized(), token_ids(2, 6)
    cache = model(ids).past_key_values
    getattr(model, f"{CHECKPOINTING}_enable")()
    assert model.train()(ids).past_key_values is None
    with pytest.raises(ValueError, match="checkpointing"):
        model(ids, past_key_values=cache)
    with pytest.raises(ValueError, match=r"model.eval\(\)"):
        model.generate(ids, **GREEDY)


def test_drafts_of_the_first_layers_leave_the_text_and_the_model_as_they_are():
    model, ids = make_tensorized().eval(), token_ids(1, 5)
    plain = model.generate(ids, max_new_tokens=8, do_sample=False)
    drafted = model.generate(ids, max_new_tokens=8, do_sample=False, assistant_early_exit=1)
    assert torch.equal(drafted, plain)
    assert model.config.num_hidden_layers == len(model.model.layers)


class _Reach(torch.nn.Module):
    def forward(self, mask, positions):
        return reach_of(mask, 4, 0, mask, positions)


def test_what_positions_read_is_exported_for_any_number_of_rows_and_tokens_without_what_onnx_lacks():
    anything = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    shown = (torch.ones(2, 5).long(), torch.arange(5).expand(2, 5))
    exported = torch.export.export(_Reach(), shown, dynamic_shapes=(anything, anything), strict=False)
    assert not {"aten.cummax.default"} & {str(node.target) for node in exported.graph.nodes}
    mask = torch.tensor([[0, 0, 1, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1, 0, 0], [1, 0, 1, 1, 1, 1, 1, 1]])
    positions = torch.tensor([[0, 0, 0, 1, 2, 2, 3, 0], [0, 1, 0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 5, 0, 1, 2]])
    assert torch.equal(exported.module()(mask, positions), _Reach()(mask, positions))
