"""What may be asked for: canvases and options, and how misuse is refused."""

import pytest
import torch

from hf_targets.masked_diffusion.sampling.canvas import blank_canvas
from hf_targets.masked_diffusion.sampling.samplers import make_sampler
from tests.masked_diffusion.sampling.denoisers import CPU, MASK, canvas_of


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


def test_a_prompt_of_no_tokens_is_a_blank_canvas():
    canvas = canvas_of(torch.zeros(2, 0, dtype=torch.long), max_length=3)
    assert torch.equal(canvas.ids, blank_canvas(2, 3, MASK, CPU).ids)
    assert canvas.masked.all()


IDS = [[1, MASK, 2]]


@pytest.mark.parametrize(
    ("ids", "mask", "max_length", "word"),
    [
        ([[1, 2], [3, 4]], None, None, "nothing to generate"),
        ([[1, MASK]], [[1, 0]], None, "nothing to generate"),
        (IDS, None, 2, "max_length"),
        ([[1, 2], [1, 0]], [[1, 1], [1, 0]], 4, "padding"),
        ([[1, MASK, 2]], [[1, 0, 1]], None, "hole"),
        (IDS, [[1, 1]], None, "shape"),
        ([[1, 7]], None, 4, "got 7"),
        ([[-1, 2]], None, 4, "got -1"),
        ([[1.0, 2.0]], None, 4, "integers"),
        ([1, MASK], None, None, "batch"),
    ],
)
def test_what_cannot_be_a_canvas_is_refused(ids, mask, max_length, word):
    with pytest.raises(ValueError, match=word):
        canvas_of(ids, mask, max_length)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"sampler": "ddpm"}, "ancestral"),
        ({"num_steps": 0}, "num_steps"),
        ({"sampler": "first_hitting", "tokens_per_step": 0}, "tokens_per_step"),
        ({"sampler": "first_hitting", "num_steps": 4}, "num_steps"),
        ({"sampler": "confidence", "num_steps": 4, "tokens_per_step": 2}, "both"),
        ({"sampler": "entropy_bound"}, "entropy_bound"),
        ({"sampler": "entropy_bound", "entropy_bound": float("nan")}, "got nan"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, word):
    with pytest.raises(ValueError, match=word):
        make_sampler(**{"sampler": "cached", **options})
