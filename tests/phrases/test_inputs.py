"""Training batches with phrases that cannot be read are refused, in the words of `forward`'s arguments."""

import pytest
import torch

from tests.tiny_models import make_dynamic_model, make_vocabulary, phrase_batch, token_ids

MODEL = make_dynamic_model("llama")


@pytest.mark.parametrize("length", [5, 7])
def test_generate_with_phrases_refuses_a_mask_of_another_length(length):
    mask = torch.ones(1, length, dtype=torch.long)
    with pytest.raises(ValueError, match=r"attention_mask must be \(batch, time\), \(1, 6\)"):
        MODEL.generate(token_ids(1, 6), attention_mask=mask, max_new_tokens=3, phrases=make_vocabulary())


def changed(name, change):
    """Return a training batch of a model with phrases of which a field is another."""
    batch = phrase_batch()
    batch[name] = change(batch[name].clone())
    return batch


def with_value(position, value):
    def change(tensor):
        tensor[position] = value
        return tensor

    return change


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("phrase_windows", with_value((0, 0), -1), r"phrase_windows must name windows in \[0, \d+\], got -1"),
        ("phrase_windows", with_value((1, 0), 999), r"phrase_windows must name windows in \[0, \d+\], got 999"),
        ("phrase_windows", with_value((0, 1), 0), r"phrase_windows must have lengths in \[1, \d+\], got 0"),
        ("phrase_windows", with_value((0, 1), 99), r"phrase_windows must have lengths in \[1, \d+\], got 99"),
        ("phrase_windows", lambda t: t[:, :1], r"phrase_windows must be \(phrases, 2\), integers, got .*\(\d+, 1\)"),
        ("phrase_windows", lambda t: t.float(), r"phrase_windows must be \(phrases, 2\), integers, got torch.float32"),
        ("windows", lambda t: t[0], r"windows must be \(windows, length\), integers, got .* shape \(\d+,\)"),
        ("windows", with_value((0, 0), 50), r"windows must be in \[0, 49\], got 50"),
        ("phrase_input_ids", with_value((0, 0), 9999), r"phrase_input_ids must be in \[0, \d+\].*got 9999"),
        ("phrase_targets", with_value((0, 0), -7), r"phrase_targets must be in \[0, \d+\].*got -7"),
        ("phrase_targets", lambda t: t[:, 1:], r"phrase_targets must have the shape of phrase_input_ids, \(3, \d+\)"),
        ("phrase_attention_mask", lambda t: t[:, 1:], r"phrase_attention_mask must have the shape of phrase_input_ids"),
        ("token_positions", lambda t: t[:1], r"token_positions must have the shape of phrase_input_ids"),
        ("token_positions", with_value((0, 1), 15), r"token_positions must be in \[0, 14\].*got 15"),
        ("phrase_mask", lambda t: t[:, 1:], r"phrase_mask must have the shape of \(batch, phrases\), \(3, \d+\)"),
        ("masked_phrases", lambda t: torch.tensor([[0, 0, 999]]), r"must have phrases in \[0, \d+\], got 999"),
        ("masked_phrases", lambda t: torch.tensor([[3, 0, 0]]), r"must have rows in \[0, 2\], got 3"),
        ("masked_phrases", lambda t: torch.tensor([1]), r"masked_phrases must have the shape of \(k, 3\)"),
    ],
)  # fmt: skip
def test_a_training_batch_of_phrases_that_points_nowhere_is_refused(name, change, told):
    MODEL(**phrase_batch())
    with pytest.raises(ValueError, match=told):
        MODEL(**changed(name, change))
