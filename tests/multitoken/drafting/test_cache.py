import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, StaticLayer

from hf_targets.multitoken.drafting.cache import RaggedCache, check_layers
from hf_targets.multitoken.drafting.drafts import Draft
from hf_targets.multitoken.hidden_state_cache import HiddenStateCache

WINDOW, HEADS, DIM = 5, 2, 3
seeds = st.integers(0, 100_000)
sizes = st.lists(st.integers(1, 5), min_size=1, max_size=6)


def chain(num_rows, num_nodes):
    tokens = torch.zeros(num_rows, num_nodes, dtype=torch.long)
    positions = torch.arange(num_nodes).expand(num_rows, num_nodes)
    return Draft(tokens, positions, list(range(1, num_nodes + 1)), tokens == 0)


class Texts:
    """A ragged cache of numbered tokens, and beside it a list for each row of the numbers it is to hold."""

    def __init__(self, seed: int, *, num_rows: int, prompt_length: int):
        self.generator = torch.Generator().manual_seed(seed)
        self.layers = [DynamicLayer(), DynamicSlidingWindowLayer(WINDOW), HiddenStateCache()]
        self.cache = DynamicCache()
        self.cache.layers = self.layers
        self.cache.activate_past_recording()
        self.next_number = 1
        prompt = self.read(num_rows, prompt_length)
        padding = torch.randint(0, prompt_length, (num_rows, 1), generator=self.generator)
        padding[0] = 0
        mask = torch.arange(prompt_length) >= padding
        self.kept = [row[there].tolist() for row, there in zip(prompt, mask, strict=True)]
        self.ragged = RaggedCache(self.cache, mask)
        self.ragged.keep(torch.zeros(num_rows, 1, dtype=torch.long), torch.ones(num_rows, dtype=torch.long))

    def random(self, low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=self.generator)

    def read(self, num_rows: int, num_words: int) -> torch.Tensor:
        """Put tokens with new numbers (rows, tokens) into all layers; a key is the number, a value its negative."""
        numbers = self.next_number + torch.arange(num_rows * num_words).view(num_rows, num_words)
        self.next_number += numbers.numel()
        for layer in self.layers:
            single = isinstance(layer, HiddenStateCache)
            keys = numbers[:, None, :, None].expand(-1, 1 if single else HEADS, -1, DIM)
            values = -keys[..., :2] if single else -keys.float()
            layer.update(keys.float(), values)
        return numbers

    def round(self, num_nodes: int, *, scattered: bool) -> None:
        """Read a chunk and keep of each row some of its positions, in any order if `scattered`, or else its first."""
        num_rows = len(self.kept)
        mask = self.ragged.mask_for(chain(num_rows, num_nodes), torch.float32, tree=False)
        assert mask is None or mask.shape == (num_rows, self.ragged.length + num_nodes + 1)
        numbers = self.read(num_rows, num_nodes + 1)
        counts = self.random(1, num_nodes + 2, num_rows)
        if scattered:
            order = torch.rand(num_rows, num_nodes + 1, generator=self.generator).argsort(dim=1)
        else:
            order = torch.arange(num_nodes + 1).expand(num_rows, -1)
        width = int(self.random(int(counts.max()), num_nodes + 2, 1))
        self.ragged.keep(order[:, :width], counts)
        for row, count in enumerate(counts.tolist()):
            self.kept[row] += numbers[row, order[row, :count]].tolist()

    def select(self) -> None:
        rows = torch.rand(len(self.kept), generator=self.generator) < 0.7
        rows[self.random(0, len(rows), 1)] = True
        self.ragged.select(rows)
        self.kept = [kept for kept, there in zip(self.kept, rows.tolist(), strict=True) if there]

    def check(self) -> None:
        mask, longest = self.ragged.mask, max(map(len, self.kept))
        assert mask.shape == (len(self.kept), longest) == (len(self.kept), self.ragged.length)
        assert mask[:, -1].all()
        for layer in self.layers:
            held = layer.keys.shape[-2]
            sliding = isinstance(layer, DynamicSlidingWindowLayer)
            assert held == (min(longest, WINDOW - 1) if sliding else longest)
            assert layer.get_seq_length() == longest
            assert layer.values.shape[-2] == held
            assert len(layer.keys) == len(layer.values) == len(self.kept)
            for row, kept in enumerate(self.kept):
                there = mask[row, -held:]
                assert (layer.keys[row][:, there] == torch.tensor(kept[-held:])[None, :, None]).all()
                assert (layer.values[row][:, there] == -torch.tensor(kept[-held:])[None, :, None]).all()


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("selecting", [False, True])
@given(seed=seeds, num_rows=st.integers(1, 4), prompt_length=st.integers(1, 9), sizes=sizes)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_row_attends_to_the_words_it_kept_in_order_and_to_nothing_else(
    scattered, selecting, seed, num_rows, prompt_length, sizes
):
    texts = Texts(seed, num_rows=num_rows, prompt_length=prompt_length)
    texts.check()
    for num_words in sizes:
        texts.round(num_words - 1, scattered=scattered)
        texts.check()
        if selecting:
            texts.select()
            texts.check()


def test_what_an_ensemble_kept_of_earlier_positions_is_left_alone_without_one():
    layer, past = DynamicLayer(), HiddenStateCache()
    tokens = torch.arange(6.0)[None, None, :, None].expand(2, 1, 6, 1)
    layer.update(tokens, tokens)
    past.update(tokens[:, :, :2], tokens[:, :, :2].long())
    cache = DynamicCache()
    cache.layers = [layer, past]
    ragged = RaggedCache(cache, torch.ones(2, 6, dtype=torch.bool))
    ragged.keep(torch.zeros(2, 1, dtype=torch.long), torch.tensor([1, 1]))
    ragged.mask_for(chain(2, 2), torch.float32, tree=False)
    layer.update(tokens[:, :, :3] + 6, tokens[:, :, :3] + 6)
    ragged.keep(torch.tensor([[0, 2], [0, 1]]), torch.tensor([2, 1]))
    rows = [layer.keys[row, 0, :, 0][ragged.mask[row]].tolist() for row in range(2)]
    assert rows == [[0, 1, 2, 3, 4, 5, 6, 8], [0, 1, 2, 3, 4, 5, 6]]


def test_the_mask_of_a_chain_is_none_where_everything_is_attended():
    ragged = RaggedCache(DynamicCache(), torch.ones(2, 4, dtype=torch.bool))
    ragged.keep(torch.zeros(2, 1, dtype=torch.long), torch.tensor([1, 1]))
    assert ragged.mask_for(chain(2, 2), torch.float32, tree=False) is None
    padded = RaggedCache(DynamicCache(), torch.tensor([[False, True, True], [True, True, True]]))
    padded.keep(torch.zeros(2, 1, dtype=torch.long), torch.tensor([1, 1]))
    mask = padded.mask_for(chain(2, 2), torch.float32, tree=False)
    assert mask.tolist() == [[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_word_of_a_tree_sees_what_is_attended_of_the_cache_and_its_own_path(dtype):
    ragged = RaggedCache(DynamicCache(), torch.tensor([[False, True], [True, True]]))
    ragged.keep(torch.zeros(2, 1, dtype=torch.long), torch.tensor([1, 1]))
    parents = torch.tensor([[0, 0, 1], [0, 0, 2]])
    draft = Draft(torch.zeros_like(parents), parents, [1, 1, 2], parents >= 0)
    mask = ragged.mask_for(draft, dtype, tree=True)
    assert (mask.shape, mask.dtype) == ((2, 1, 4, 6), dtype)
    assert set(mask.unique().tolist()) == {0.0, torch.finfo(dtype).min}
    seen = (mask == 0)[:, 0].int().tolist()
    assert seen[0] == [[0, 1, 1, 0, 0, 0], [0, 1, 1, 1, 0, 0], [0, 1, 1, 0, 1, 0], [0, 1, 1, 1, 0, 1]]
    assert seen[1] == [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 1, 0], [1, 1, 1, 0, 1, 1]]


class OtherLayer(DynamicLayer):
    """A dynamic layer that may hold something else."""


@pytest.mark.parametrize("layer", [StaticLayer(8), OtherLayer()], ids=str)
def test_a_layer_that_cannot_be_rearranged_is_refused_with_a_way_out(layer):
    with pytest.raises(ValueError, match=f"has a {type(layer).__name__}"):
        check_layers(Cache(layers=[DynamicLayer(), layer]))
