"""What may be asked for: canvases and options, and how misuse is refused."""

import pytest
import torch

from hf_targets.masked_diffusion.sampling.canvas import blank_canvas, given_canvas
from hf_targets.masked_diffusion.sampling.samplers import make_sampler
from tests.masked_diffusion.sampling.denoisers import CPU, MASK, VOCAB, canvas_of


def test_masks_are_appended_up_to_max_length():
    canvas = canvas_of([[1, MASK], [3, 4]], max_length=4)
    assert canvas.ids.tolist() == [[1, MASK, MASK, MASK], [3, 4, MASK, MASK]]
    assert canvas.masked.tolist() == [[False, True, True, True], [False, False, True, True]]
    assert canvas.attention_mask is None


def test_prompts_may_be_padded_on_the_left_also_with_the_mask_id_or_wholly():
    canvas = canvas_of([[MASK, 1], [MASK, MASK], [2, 3]], [[0, 1], [0, 0], [1, 1]], max_length=3)
    assert canvas.masked.tolist() == [[False, False, True]] * 3
    assert canvas.attention_mask.tolist() == [[0, 1, 1], [0, 0, 1], [1, 1, 1]]


def test_texts_to_fill_in_may_be_padded_on_either_side():
    canvas = canvas_of([[1, MASK, 0], [0, MASK, 2]], [[1, 1, 0], [0, 1, 1]])
    assert canvas.masked.sum() == 2


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64])
def test_ids_may_be_any_integers_and_masks_bools_or_numbers(dtype):
    ids = torch.tensor([[1, MASK, 0]], dtype=dtype)
    for mask in (torch.tensor([[True, True, False]]), torch.tensor([[1.0, 1.0, 0.0]])):
        canvas = given_canvas(ids, mask, max_length=None, mask_token_id=MASK, vocab_size=VOCAB, device=CPU)
        assert canvas.ids.dtype == torch.int64
        assert canvas.attention_mask.tolist() == [[1, 1, 0]]


def test_a_prompt_of_no_tokens_is_a_blank_canvas():
    ids = torch.zeros(2, 0, dtype=torch.long)
    canvas = given_canvas(ids, None, max_length=3, mask_token_id=MASK, vocab_size=VOCAB, device=CPU)
    assert torch.equal(canvas.ids, blank_canvas(2, 3, MASK, CPU).ids)
    assert canvas.masked.all()


IDS = [[1, MASK, 2]]


@pytest.mark.parametrize(
    ("ids", "mask", "max_length", "message"),
    [
        (
            [[1, 2], [3, 4]],
            None,
            None,
            r"nothing to generate.*\(id 6\).*put it at the positions to fill, or give a max_length",
        ),
        ([[1, MASK]], [[1, 0]], None, "nothing to generate"),
        ([[1, 2]], None, 2, "nothing to generate"),
        (IDS, None, 2, "max_length includes the given tokens and must be at least their number, 3, got 2"),
        (IDS, None, 0, "max_length must be an integer, 1 or more, got 0"),
        (IDS, None, 4.0, "max_length must be an integer"),
        ([[1, 2], [1, 0]], [[1, 1], [1, 0]], 4, "padding, and row 1 does; pad on the left"),
        ([[1, MASK, 2]], [[1, 0, 1]], None, "row 0 has a hole in it. A token to fill in is attended to"),
        (IDS, [[1, 1]], None, r"attention_mask must have the shape of input_ids, \(1, 3\), got \(1, 2\)"),
        (IDS, [[1, 2, 1]], None, "attention_mask must hold 1 for tokens and 0 for padding"),
        ([[1, 7]], None, 4, r"input_ids must be in \[0, 6\], the model's vocabulary, got 7; use"),
        ([[-1, 2]], None, 4, r"input_ids must be in \[0, 6\], the model's vocabulary, got -1; use"),
        ([[1.0, 2.0]], None, 4, "input_ids must be token ids, integers, got torch.float32"),
        ([[True, False]], None, 4, "input_ids must be token ids, integers, got torch.bool"),
        ([1, MASK], None, None, r"input_ids must be a tensor of token ids \(batch, length\).*got \(2,\)"),
    ],
)
def test_what_cannot_be_a_canvas_is_refused(ids, mask, max_length, message):
    with pytest.raises(ValueError, match=message):
        canvas_of(ids, mask, max_length)


def test_a_canvas_has_rows():
    for ids in (torch.zeros(0, 3, dtype=torch.long), [[1, 2]]):
        with pytest.raises(ValueError, match=r"at least one row, got .*give batch_size"):
            given_canvas(ids, None, max_length=4, mask_token_id=MASK, vocab_size=VOCAB, device=CPU)


@pytest.mark.parametrize(
    ("size", "length", "name"), [(0, 4, "batch_size"), (True, 4, "batch_size"), (1, 0, "max_length")]
)
def test_a_blank_canvas_has_rows_and_columns(size, length, name):
    with pytest.raises(ValueError, match=f"{name} must be an integer, 1 or more, got"):
        blank_canvas(size, length, MASK, CPU)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "ddpm"}, "sampler must be one of ancestral, cached, first_hitting, confidence, .*got 'ddpm'"),
        ({"num_steps": 0}, "num_steps must be an integer, 1 or more, got 0"),
        ({"num_steps": 2.0}, "num_steps must be an integer"),
        ({"num_steps": True}, "num_steps must be an integer"),
        ({"sampler": "first_hitting", "tokens_per_step": 0}, "tokens_per_step must be an integer, 1 or more, got 0"),
        ({"sampler": "first_hitting", "num_steps": 4}, "num_steps is an option of ancestral and cached and confidence"),
        (
            {"tokens_per_step": 2},
            "tokens_per_step is an option of first_hitting and confidence, got 2 with .*cached",
        ),
        ({"sampler": "cached", "entropy_bound": 0.1}, "entropy_bound is an option of entropy_bound, got 0.1"),
        ({"sampler": "entropy_bound", "num_steps": 4, "entropy_bound": 0.1}, "num_steps is an option of"),
        ({"sampler": "confidence", "num_steps": 4, "tokens_per_step": 2}, "both say how many .*leave out one"),
        ({"sampler": "entropy_bound"}, "needs entropy_bound, in nats"),
        (
            {"sampler": "entropy_bound", "entropy_bound": -1.0},
            "entropy_bound is in nats and must be 0 or more, got -1.0",
        ),
        ({"sampler": "entropy_bound", "entropy_bound": float("nan")}, "entropy_bound is in nats"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_sampler(**{"sampler": "cached", **options})
