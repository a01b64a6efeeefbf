from types import SimpleNamespace

import pytest
import torch
from scipy import stats

from hf_targets.maths.losses import IGNORED
from lab.draft_heads import sample_blocks
from tests.tiny_models import VOCAB, make_backbone

FIRST, END = 5, 0


def tokenizer(bos=FIRST, eos=END):
    return SimpleNamespace(bos_token_id=bos, eos_token_id=eos)


def sample(model=None, tokens=None, **wanted):
    sizes = {"num_blocks": 7, "block_size": 12, "batch_size": 3, **wanted}
    blocks = sample_blocks(model or make_backbone("gpt2"), tokens or tokenizer(), **sizes)
    assert blocks.column_names == ["input_ids", "attention_mask", "labels"]
    columns = blocks.with_format("torch")[:]
    assert {tuple(column.shape) for column in columns.values()} == {(sizes["num_blocks"], sizes["block_size"])}
    return [columns[name] for name in blocks.column_names]


@pytest.mark.parametrize("first", [FIRST, END])
@pytest.mark.parametrize("ends", [[END], [END, 7, 8, 9]], ids=str)
@pytest.mark.parametrize("block_size", [2, 3, 25])
def test_a_text_reaches_up_to_its_end_token_and_padding_begins_right_behind_it(first, ends, block_size):
    model = make_backbone("gpt2")
    model.generation_config.eos_token_id = ends
    ids, mask, labels = sample(model, tokenizer(bos=first), num_blocks=40, batch_size=40, block_size=block_size)
    lengths = []
    for row in ids.tolist():
        length = next((at + 1 for at, token in enumerate(row) if at and token in ends), block_size)
        assert set(row[length:]) <= {ends[0]}
        lengths.append(length)
    expected = torch.arange(block_size) < torch.tensor(lengths)[:, None]
    assert torch.equal(mask, expected.long())
    assert torch.equal(labels, ids.masked_fill(~expected, IGNORED))
    if block_size == 25:
        assert min(lengths) < block_size


def test_blocks_depend_on_the_seed_alone_and_leave_the_global_random_state_as_it_is():
    model = make_backbone("gpt2")
    one = sample(model, seed=3)
    torch.manual_seed(1234)
    state = torch.random.get_rng_state()
    again, other = sample(model, seed=3), sample(model, seed=4)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(map(torch.equal, one, again))
    assert not torch.equal(one[0], other[0])
    assert len({tuple(row) for row in one[0].tolist()}) == 7  # batches go on with the seed


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_words_are_drawn_from_all_that_the_model_predicts_at_a_temperature(temperature):
    model = make_backbone("gpt2")
    with torch.no_grad():
        logits = model(torch.tensor([[FIRST]])).logits[0, -1].double()
    ids, _, _ = sample(model, num_blocks=4000, batch_size=4000, block_size=2, temperature=temperature)
    counts, wanted = torch.bincount(ids[:, 1], minlength=VOCAB), (logits / temperature).softmax(dim=0) * 4000
    order = wanted.argsort(descending=True)
    kept = int((wanted >= 10).sum()) - 1  # the rest counts together
    observed, expected = ([*each[order][:kept].tolist(), each[order][kept:].sum().item()] for each in (counts, wanted))
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_blocks_beyond_the_positions_and_a_tokenizer_without_a_first_token_are_refused():
    for given, word in (({"block_size": 100_000}, "block_size"), ({"tokens": tokenizer(None, None)}, "bos_token")):
        with pytest.raises(ValueError, match=word):
            sample(**given)
