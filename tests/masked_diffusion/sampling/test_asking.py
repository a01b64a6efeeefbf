"""What may be asked for: canvases and options, and how misuse is refused."""

import pytest
import torch

from tests.masked_diffusion.sampling.denoisers import MASK, canvas_of


@pytest.mark.parametrize(
    ("ids", "mask", "max_length", "masked", "kept"),
    [
        ([[1, MASK], [3, 4]], None, 3, [[0, 1, 1], [0, 0, 1]], None),
        ([[MASK, 1], [MASK, MASK]], [[0, 1], [0, 0]], 3, [[0, 0, 1]] * 2, [[0, 1, 1], [0, 0, 1]]),
        ([[1, MASK, 0], [0, MASK, 2]], [[1, 1, 0], [0, 1, 1]], None, [[0, 1, 0]] * 2, [[1, 1, 0], [0, 1, 1]]),
        (torch.zeros(2, 0).long(), None, 3, [[1, 1, 1]] * 2, None),
    ],
    ids=["masks behind a prompt", "padding on the left", "padding on both sides", "no tokens"],
)
def test_what_is_masked_is_free_unless_it_is_padding(ids, mask, max_length, masked, kept):
    canvas = canvas_of(ids, mask, max_length=max_length)
    assert canvas.masked.long().tolist() == masked and (canvas.ids[canvas.masked] == MASK).all()
    assert (None if canvas.attention_mask is None else canvas.attention_mask.tolist()) == kept


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
    ],
)
def test_what_cannot_be_a_canvas_is_refused(ids, mask, max_length, word):
    with pytest.raises(ValueError, match=word):
        canvas_of(ids, mask, max_length)
