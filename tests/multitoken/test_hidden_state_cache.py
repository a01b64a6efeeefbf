import pytest
import torch
from transformers import DynamicCache, StaticCache

from hf_targets.multitoken.hidden_state_cache import HiddenStateCache
from tests.tiny_models import CONFIGS

BATCH, DIM = 3, 4


def positions(time, start=0, dtype=torch.float32):
    """Hidden states, tokens and steps of `time` positions, all of them different."""
    tokens = torch.arange(BATCH * time).view(BATCH, time) + 1000 * (start + 1) + 1
    steps = torch.arange(start, start + time).expand(BATCH, time)
    return torch.randn(BATCH, time, DIM).to(dtype), tokens, steps


def filled(time=6, dtype=torch.float32):
    layer, given = HiddenStateCache(), positions(time, dtype=dtype)
    layer.extend(*given, window=2)
    return layer, given


def assert_holds(layer, hidden, tokens, steps):
    assert layer.get_seq_length() == hidden.shape[1]
    assert torch.equal(layer.keys[:, 0], hidden)
    assert torch.equal(layer.values[:, 0], torch.stack([tokens, steps], dim=-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_words_stay_integers_whatever_the_states_are(dtype):
    layer, (hidden, tokens, steps) = filled(dtype=dtype)
    assert (layer.keys.dtype, layer.values.dtype) == (dtype, torch.long)
    assert tokens.min() > 256  # more than bfloat16 could tell apart
    assert_holds(layer, hidden, tokens, steps)


def test_beams_cropping_and_selection_move_states_and_words_together():
    order = torch.tensor([2, 0, 0])
    layer, given = filled()
    layer.reorder_cache(order)
    assert_holds(layer, *(one[order] for one in given))

    layer, given = filled()
    layer.crop(-2)
    assert_holds(layer, *(one[:, :-2] for one in given))
    assert layer.last_steps().tolist() == [3] * BATCH

    layer, given = filled()
    layer.batch_select_indices(torch.tensor([1]))
    assert_holds(layer, *(one[1:2] for one in given))

    layer, given = filled()
    layer.batch_repeat_interleave(2)
    assert_holds(layer, *(one.repeat_interleave(2, dim=0) for one in given))


def test_a_cache_that_does_not_grow_or_is_offloaded_is_an_error():
    with pytest.raises(ValueError, match="StaticCache"):
        HiddenStateCache.check(StaticCache(config=CONFIGS["llama"](), max_cache_len=8))
    offloaded = DynamicCache()
    offloaded.offloading = True
    with pytest.raises(ValueError, match="offloaded"):
        HiddenStateCache.check(offloaded)
