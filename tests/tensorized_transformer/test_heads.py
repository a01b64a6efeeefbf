"""Heads, drafts and cosine regularisation on a Tensorized Transformer."""

import pytest
import torch

from tests.tensorized_transformer.models import SEGMENT, make_heads
from tests.tiny_backbones import left_padded
from tests.tiny_models import teach_heads

GREEDY = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None}


@pytest.fixture(scope="module")
def model():
    """Heads that draft well what the model generates from the prompts of `left_padded`."""
    made = make_heads("difference").double()
    ids, mask = left_padded()
    texts = made.generate(ids, attention_mask=mask, **GREEDY)
    teach_heads(made, texts, torch.cat([mask, mask.new_ones(len(ids), 16)], dim=1))
    return made


@pytest.mark.usefixtures("clear_choices")
@pytest.mark.parametrize("options", [{"draft_tokens": 3}, {"draft_tokens": 3, "draft_branches": 2}], ids=str)
@pytest.mark.parametrize("num_rows", [1, 4])
def test_drafts_change_no_text_beyond_the_window_and_save_passes(model, num_rows, options):
    ids, mask = (part[:num_rows] for part in left_padded())
    assert ids.shape[1] + GREEDY["max_new_tokens"] > 2 * SEGMENT
    expected = model.generate(ids, attention_mask=mask, **GREEDY)
    output = model.generate(ids, attention_mask=mask, **options, return_dict_in_generate=True, **GREEDY)
    assert torch.equal(output.sequences, expected)
    assert output.num_forward_passes < GREEDY["max_new_tokens"]


@pytest.mark.usefixtures("clear_choices")
def test_the_ensemble_writes_the_same_with_and_without_a_cache(model):
    ids, mask = left_padded()
    written = [
        model.generate(ids, attention_mask=mask, ensemble_weight=0.3, use_cache=use_cache, **GREEDY)
        for use_cache in (True, False)
    ]
    assert torch.equal(*written)
    drafted = model.generate(ids, attention_mask=mask, ensemble_weight=0.3, draft_tokens=3, **GREEDY)
    assert torch.equal(drafted, written[0])
