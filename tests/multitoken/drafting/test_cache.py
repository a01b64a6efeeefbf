from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from hf_targets.multitoken.drafting.cache import RaggedCache
from hf_targets.multitoken.drafting.drafts import Draft
from hf_targets.multitoken.hidden_state_cache import HiddenStateCache


def chain(num_rows, num_nodes):
    tokens = torch.zeros(num_rows, num_nodes, dtype=torch.long)
    positions = torch.arange(num_nodes).expand(num_rows, num_nodes)
    return Draft(tokens, positions, list(range(1, num_nodes + 1)), tokens == 0)


def test_what_an_ensemble_kept_of_earlier_positions_is_left_alone_without_one():
    layer, past = DynamicLayer(), HiddenStateCache()
    tokens = torch.arange(6.0)[None, None, :, None].expand(2, 1, 6, 1)
    layer.update(tokens, tokens)
    past.update(tokens[:, :, :2], tokens[:, :, :2].long())
    cache = DynamicCache()
    cache.layers = [layer, past]
    ragged = RaggedCache(cache, torch.ones(2, 6, dtype=torch.bool))
    ragged.keep(torch.zeros(2, 1, dtype=torch.long), torch.tensor([1, 1]), [1, 1])
    ragged.mask_for(replace(chain(2, 2), depths=[1, 1]), torch.float32)
    layer.update(tokens[:, :, :3] + 6, tokens[:, :, :3] + 6)
    ragged.keep(torch.tensor([[0, 2], [0, 1]]), torch.tensor([2, 1]), [2, 1])
    rows = [layer.keys[row, 0, :, 0][ragged.mask[row]].tolist() for row in range(2)]
    assert rows == [[0, 1, 2, 3, 4, 5, 6, 8], [0, 1, 2, 3, 4, 5, 6]]


def test_a_layer_with_a_window_drops_what_has_left_it_in_passes_without_drafts():
    cache, tokens = DynamicCache(), torch.arange(9.0)[None, None, :, None]
    cache.layers = [layer := DynamicSlidingWindowLayer(5)]
    cache.activate_past_recording()
    layer.update(tokens[:, :, :4], tokens[:, :, :4])
    ragged = RaggedCache(cache, torch.ones(1, 4, dtype=torch.bool))
    for read in range(4, 10):
        ragged.keep(torch.zeros(1, 1, dtype=torch.long), torch.tensor([1]), [1])
        assert layer.keys.flatten().tolist() == list(range(max(read - 4, 0), read))
        ragged.mask_for(chain(1, 0), torch.float32)
        layer.update(tokens[:, :, read : read + 1], tokens[:, :, read : read + 1])


@pytest.mark.parametrize("gaps", [True, False])
def test_rows_hold_what_they_kept_and_gaps_are_few(gaps):
    layer, cache = DynamicLayer(), DynamicCache()
    cache.layers, expected = [layer], [list(range(20)), list(range(20))]
    layer.update(*torch.arange(20.0)[None, None, None, :, None].expand(2, 2, 1, 20, 1))
    ragged = RaggedCache(cache, torch.ones(2, 20, dtype=torch.bool), gaps=gaps)
    ragged.keep(torch.zeros(2, 1, dtype=torch.long), torch.tensor([1, 1]), [1, 1])
    held_gaps = False
    for read in range(20, 120, 4):
        ragged.mask_for(chain(2, 3), torch.float32)
        layer.update(*torch.arange(float(read), read + 4)[None, None, None, :, None].expand(2, 2, 1, 4, 1))
        counts = [(1, 4), (3, 1), (2, 2)][read // 4 % 3]
        ragged.keep(torch.arange(4).expand(2, 4), torch.tensor(counts), counts)
        for row, count in enumerate(counts):
            expected[row] += range(read, read + count)
            assert layer.keys[row, 0, :, 0][ragged.mask[row]].tolist() == expected[row]
        held_gaps |= not ragged.mask[:, -1].all()
        assert ragged.length == layer.keys.shape[2] <= max(map(len, expected)) * (1.2 if gaps else 1)
    assert held_gaps == gaps
