"""Training batches with phrases that cannot be read are refused, in the words of `forward`'s arguments."""

import pytest
import torch

from tests.tiny_models import make_dynamic_model, phrase_batch

MODEL = make_dynamic_model("llama")


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
    ("name", "change"),
    [
        ("phrase_windows", with_value((0, 0), -1)),
        ("phrase_windows", with_value((0, 1), 0)),
        ("phrase_windows", with_value((0, 1), 99)),
        ("phrase_windows", lambda t: t[:, :1]),
        ("windows", lambda t: t[0]),
        ("windows", with_value((0, 0), 50)),
        ("phrase_input_ids", with_value((0, 0), 9999)),
        ("phrase_targets", with_value((0, 0), -7)),
        ("phrase_attention_mask", lambda t: t[:, 1:]),
        ("token_positions", with_value((0, 1), 15)),
        ("phrase_mask", lambda t: t[:, 1:]),
        ("masked_phrases", lambda t: torch.tensor([[0, 0, 999]])),
    ],
)
def test_a_training_batch_of_phrases_that_points_nowhere_is_refused(name, change):
    MODEL(**phrase_batch())
    with pytest.raises(ValueError, match=f"{name} must"):
        MODEL(**changed(name, change))
