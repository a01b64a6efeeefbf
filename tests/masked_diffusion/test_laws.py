"""What masked diffusion models owe beside the contract, over the kinds of curves in `models.py`."""

import pytest
import torch

from hf_targets.masked_diffusion.rows import DiffusionCollator
from tests.masked_diffusion.models import (
    CURVES,
    MASK,
    clean_ids,
    make_from_causal,
    make_mdlm,
    masked_batch,
    masked_ids,
)
from tests.tiny_backbones import pad_rows
from tests.tiny_models import VOCAB

kinds = pytest.mark.parametrize("kind", CURVES)
sides = pytest.mark.parametrize("side", ["left", "right"])


@kinds
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_loss_is_the_bound_summed_position_by_position(kind, mode):
    model, batch = make_mdlm(kind).double().train(mode == "train"), masked_batch()
    batch["timesteps"] = batch["timesteps"].double()
    output = model(**batch, skip_logits=False)
    rows, count = [0.0, 0.0, 0.0], 0
    for row, time in enumerate(batch["timesteps"].tolist()):
        for index, label in enumerate(batch["labels"][row].tolist()):
            count += label != -100
            if label != -100 and batch["input_ids"][row, index] == MASK:
                rows[row] -= output.logits[row, index, label].item() / time
    assert count == 24
    assert abs(output.loss.item() - sum(rows) / count) < 1e-9
    torch.testing.assert_close(output.row_nelbos, torch.tensor(rows, dtype=torch.float64))
    assert output.num_targets.tolist() == [8, 8, 8]
    assert list(output.loss_parts) == ["nelbo"]
    assert torch.equal(output.loss_parts["nelbo"], output.loss)
    assert not output.loss_parts["nelbo"].requires_grad
    assert not output.row_nelbos.requires_grad


@kinds
@sides
def test_padded_rows_have_the_bounds_and_curves_of_each_row_alone_at_its_time(kind, side):
    model = make_mdlm(kind, time_conditioning=True).double().train()
    lengths, times = (5, 9, 2), torch.tensor([0.3, 0.6, 1.0])
    pairs = zip(lengths, times, strict=True)
    batches = [{**masked_batch(1, length, seed=length), "timesteps": time[None]} for length, time in pairs]
    alone = [model(**batch, skip_logits=False) for batch in batches]
    ids = pad_rows([batch["input_ids"][0] for batch in batches], side, MASK)
    mask = pad_rows([torch.ones(length, dtype=torch.long) for length in lengths], side, 0)
    labels = pad_rows([batch["labels"][0] for batch in batches], side, 3)  # a label under padding is none
    together = model(ids, attention_mask=mask, labels=labels, timesteps=times, skip_logits=False)
    for row, single in enumerate(alone):
        torch.testing.assert_close(together.logits[row][mask[row] == 1], single.logits[0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(together.row_nelbos[row], single.row_nelbos[0])
        assert together.num_targets[row] == single.num_targets[0]
        if single.control_points is not None:
            count = single.control_points.shape[1]
            torch.testing.assert_close(together.control_points[row, :count], single.control_points[0])
        if single.curve_probabilities is not None:
            torch.testing.assert_close(together.curve_probabilities[row], single.curve_probabilities[0])
    torch.testing.assert_close(together.loss, sum(one.row_nelbos.sum() for one in alone) / (4 + 8 + 1))


@pytest.mark.parametrize("model", ["time", "shifted", "own_state"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_rows_have_the_losses_and_the_gradients_of_padded_ones(model, attention):
    made = {
        "time": lambda: make_mdlm(time_conditioning=True),
        "shifted": lambda: make_from_causal(),
        "own_state": lambda: make_from_causal(shift=False),
    }
    model, found = made[model]().double(), []
    model.set_attn_implementation(attention)
    texts = [(masked_ids(size, seed=size, share=0.7), clean_ids(size, seed=size)) for size in (9, 4, 7)]
    assert any(canvas[0] == MASK for canvas, _ in texts[1:])
    rows = [
        {"input_ids": canvas, "labels": labels, "timesteps": time}
        for (canvas, labels), time in zip(texts, (0.1, 0.5, 0.9), strict=True)
    ]
    for padding_free in (False, True):
        output = model(**DiffusionCollator(padding_free=padding_free)(rows))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        found.append((output.loss, torch.autograd.grad(output.loss, trained, allow_unused=True)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


@kinds
def test_what_is_no_target_is_never_masked_and_not_counted(kind):
    model, ids = make_mdlm(kind), clean_ids(8, 10)
    labels = ids.clone()
    labels[:, ::2] = -100
    mask = torch.ones_like(ids)
    mask[:4, 7:] = 0
    output = model(ids, attention_mask=mask, labels=labels)
    assert torch.equal(output.canvas[:, ::2], ids[:, ::2])
    assert torch.equal(output.canvas[:4, 7:], ids[:4, 7:])
    assert output.num_targets.tolist() == [3] * 4 + [5] * 4
    masked = output.canvas == MASK
    assert torch.equal(output.canvas[~masked], ids[~masked])
    assert 5 < masked.sum() < 30
    again = model(output.canvas, attention_mask=mask, labels=labels, timesteps=output.timesteps)
    assert torch.equal(again.loss, output.loss)
    assert model(ids, labels=torch.full_like(ids, -100)).loss == 0


@kinds
@sides
def test_eager_attention_is_sdpa(kind, side):
    model, logits = make_mdlm(kind), []
    ids = pad_rows([masked_ids(1, length, seed=length)[0] for length in (5, 9)], side, 0)
    mask = pad_rows([torch.ones(length, dtype=torch.long) for length in (5, 9)], side, 0)
    for attention in ("eager", "sdpa"):
        model.set_attn_implementation(attention)
        logits.append(model(ids, attention_mask=mask).logits[mask == 1])
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)


@kinds
def test_a_vocabulary_grows_around_the_mask(kind):
    model, canvas = make_mdlm(kind), masked_ids(2, 8)
    model.resize_token_embeddings(VOCAB + 5)
    assert model.config.mask_token_id == MASK
    assert (model(canvas).logits[canvas == MASK][:, MASK] < -9e5).all()
    with pytest.raises(ValueError, match="mask_token_id=49"):
        model.resize_token_embeddings(MASK)


_IDS = clean_ids(2, 6)
_HOLE = torch.ones(2, 6)
_HOLE[1, 3] = 0
BAD_CALLS = {
    "a label that is the mask": ({"labels": _IDS.clamp(min=49)}, "the mask, 49"),
    "a hole": ({"attention_mask": _HOLE}, "hole"),
    "padding alone": ({"attention_mask": torch.zeros(2, 6)}, "no token"),
    "times of another shape": ({"timesteps": torch.ones(2, 1)}, "timesteps"),
    "a time above 1": ({"timesteps": torch.tensor([0.5, 1.5])}, "timesteps"),
    "text masked already": ({"timesteps": None}, "clean text"),
    "labels shifted": ({"input_ids": _IDS, "labels": _IDS.roll(1, 1), "timesteps": None}, "the same or -100"),
    "may_mask of another shape": ({"may_mask": torch.ones(2, 3), "timesteps": None}, "may_mask"),
    "may_mask without a target": ({"may_mask": torch.zeros(2, 6), "timesteps": None}, "each target"),
    "positions of padded rows": (
        {"attention_mask": 1 - torch.eye(6)[4:], "position_ids": torch.arange(6).clamp(max=4)[None]},
        "no padding",
    ),
    "a text of a packed row without a time": ({"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])}, r"text .* \(4,\)"),
    "may_mask and times": ({"may_mask": torch.ones(2, 6)}, "no timesteps yet"),
}


@pytest.mark.parametrize(("changes", "word"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_input_is_told_what_to_do(changes, word):
    with pytest.raises(ValueError, match=word):
        make_mdlm()(**{**masked_batch(2, 6), **changes})


def test_packed_rows_are_refused_where_there_is_a_curve_or_attention_takes_no_mask():
    batch = {**masked_batch(1, 6), "position_ids": torch.arange(6)[None]}
    with pytest.raises(ValueError, match="a curve"):
        make_mdlm("curve")(**batch)
    model = make_mdlm()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="a packed row needs a mask"):
        model(**batch)
