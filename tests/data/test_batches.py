import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, prepare_data_loader, skip_first_batches
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from hf_targets.data.batches import TokenBatchSampler

LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=60)
MANY = [1 + row % 17 for row in range(200)]


def epochs(sampler, count=1):
    found = []
    for epoch in range(count):
        sampler.set_epoch(epoch)
        found.append(list(sampler))
    return found if count > 1 else found[0]


def sampler_of(lengths=MANY, max_tokens=40, *, shuffle=True, seed=0):
    return TokenBatchSampler(lengths, max_tokens, shuffle=shuffle, seed=seed)


@given(lengths=LENGTHS, max_tokens=st.integers(20, 100), shuffle=st.booleans(), seed=st.integers(0, 3))
def test_each_epoch_has_every_row_once_in_batches_of_at_most_so_many_padded_tokens(lengths, max_tokens, shuffle, seed):
    sampler = sampler_of(lengths, max_tokens, shuffle=shuffle, seed=seed)
    for batches in epochs(sampler, 3):
        assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
        assert all(len(batch) * max(lengths[row] for row in batch) <= max_tokens for batch in batches)
        assert all(batches) and len(batches) == len(sampler)


@given(lengths=LENGTHS, max_tokens=st.integers(20, 100))
def test_no_row_of_a_batch_would_have_fitted_into_the_batch_of_longer_rows(lengths, max_tokens):
    batches = epochs(sampler_of(lengths, max_tokens, shuffle=False))
    for batch in batches[:-1]:
        assert (len(batch) + 1) * lengths[batch[0]] > max_tokens
    in_order = [lengths[row] for batch in batches for row in batch]
    assert in_order == sorted(lengths, reverse=True)


def test_the_order_depends_on_seed_and_epoch_and_on_nothing_else():
    torch.manual_seed(1)
    first = epochs(sampler_of(), 3)
    torch.manual_seed(2)
    assert first == epochs(sampler_of(), 3)
    assert first[0] != first[1] != first[2] != first[0]
    assert first[0] != epochs(sampler_of(seed=1))
    assert {frozenset(batch) for batch in first[0]} != {frozenset(batch) for batch in first[1]}
    longest = [[max(MANY[row] for row in batch) for batch in batches] for batches in first]
    assert longest[0] != longest[1] and sorted(longest[0]) == sorted(longest[1])
    unshuffled = epochs(sampler_of(shuffle=False), 2)
    assert unshuffled[0] == unshuffled[1]


def loader_of(sampler, processes, process):
    loader = DataLoader(list(range(len(MANY))), batch_sampler=sampler)
    return prepare_data_loader(loader, num_processes=processes, process_index=process)


def batches_of(loader):
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_processes_share_the_batches_of_each_epoch_and_have_as_many(processes):
    expected = epochs(sampler_of(), 2)
    loaders = [loader_of(sampler_of(), processes, process) for process in range(processes)]
    for epoch in (0, 1):
        shares = [batches_of(loader) for loader in loaders]  # a loader counts its epochs itself
        assert len({len(share) for share in shares}) == 1
        assert len(shares[0]) == len(loaders[0]) == -(-len(expected[0]) // processes)
        dealt = [batch for step in zip(*shares, strict=True) for batch in step]
        assert dealt[: len(expected[epoch])] == expected[epoch]
        again = dealt[len(expected[epoch]) :]
        assert again == expected[epoch][: len(again)]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_resumed_epoch_goes_on_where_it_stopped(processes):
    for process in range(processes):
        sampler = sampler_of()
        sampler.set_epoch(2)
        whole = list(BatchSamplerShard(sampler, processes, process)) if processes > 1 else list(sampler)
        resumed = sampler_of()
        loader = skip_first_batches(loader_of(resumed, processes, process), 5)
        resumed.set_epoch(2)
        loader.iteration = 2
        assert len(loader) == len(whole) - 5
        assert batches_of(loader) == whole[5:]


@pytest.mark.parametrize(("lengths", "says"), [([3, 50, 41], "row 1 has 50"), ([], "a row"), ([3, 0], "1 or more")])
def test_rows_that_fit_no_batch_are_refused(lengths, says):
    with pytest.raises(ValueError, match=says):
        sampler_of(lengths)
