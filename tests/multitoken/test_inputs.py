import pytest
import torch

from tests.tiny_backbones import token_ids
from tests.tiny_models import make_model
from tests.trainer_runs import CHECKPOINTING

MODEL = make_model("llama")


@pytest.mark.parametrize("wanted", [{}, {"draft_tokens": 2}, {"ensemble_weight": 0.2}, {"num_beams": 2}], ids=str)
@pytest.mark.parametrize("length", [5, 7])
def test_every_way_to_generate_refuses_a_mask_of_another_length(wanted, length):
    mask = torch.ones(1, length, dtype=torch.long)
    with pytest.raises(ValueError, match="attention_mask must be"):
        MODEL.generate(token_ids(1, 6), attention_mask=mask, max_new_tokens=3, **wanted)


def test_scores_need_a_weight_and_labels():
    ids = token_ids(2, 8)
    with pytest.raises(ValueError, match="nll_weights"):
        MODEL(ids, labels=ids, nll_weights=[])
    with pytest.raises(ValueError, match="nll_weights"):
        MODEL(ids, nll_weights=[0.1])


def test_generating_in_training_with_checkpointing_is_told_to_evaluate():
    model = make_model("llama").train()
    getattr(model, f"{CHECKPOINTING}_enable")()
    ids = token_ids(2, 6)
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    with pytest.raises(ValueError, match=r"call model\.eval\(\): gradient checkpointing in training leaves the cache"):
        model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False)
