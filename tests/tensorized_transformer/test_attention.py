import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets.tensorized_transformer import attention
from tests.tensorized_transformer.by_hand import attention_by_hand, read_by_hand
from tests.tensorized_transformer.models import SEGMENT, make_tensorized
from tests.tiny_backbones import token_ids


def influence(model, time: int) -> torch.Tensor:
    """Return how much each logit (row) depends on each embedding (column), (time, time)."""
    embeds = model.get_input_embeddings()(token_ids(1, time)).detach().requires_grad_()
    logits = model(inputs_embeds=embeds).logits[0]
    rows = [torch.autograd.grad(row.square().sum(), embeds, retain_graph=True)[0][0] for row in logits]
    return torch.stack(rows).abs().sum(dim=-1)


@settings(max_examples=12)
@given(
    time=st.integers(1, 10), size=st.integers(2, 5), cores=st.integers(1, 3), tied=st.booleans(), seed=st.integers(0, 9)
)
def test_logits_of_a_text_of_any_length_are_those_of_the_equations(time, size, cores, tied, seed):
    fields = {"segment_length": size, "num_attention_heads": cores, "tie_word_embeddings": tied}
    model = make_tensorized(seed, **fields).double()
    ids = token_ids(2, time, seed=seed)
    for row, text in zip(model(ids).logits, ids, strict=True):
        torch.testing.assert_close(row, read_by_hand(model, text))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("segments", [1, 3])
def test_the_published_logits_are_those_of_the_published_equations(cores, segments):
    model = make_tensorized(paper_leaky=True, num_attention_heads=cores).double()
    ids = token_ids(2, segments * SEGMENT)
    for row, text in zip(model(ids).logits, ids, strict=True):
        torch.testing.assert_close(row, read_by_hand(model, text))


def test_the_last_position_of_a_segment_reads_as_published():
    leaky, causal = make_tensorized(paper_leaky=True).double(), make_tensorized().double()
    hidden = torch.randn(SEGMENT, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    as_published, ours = (attention_by_hand(model, 0, hidden) for model in (leaky, causal))
    torch.testing.assert_close(ours[-1], as_published[-1])
    assert not torch.isclose(ours[:-1], as_published[:-1]).any()


@pytest.mark.parametrize("time", [1, SEGMENT - 1, SEGMENT, 3 * SEGMENT + 1])
def test_no_logit_depends_on_a_later_token(time):
    model = make_tensorized().double()
    found = influence(model, time)
    reach = model.config.num_hidden_layers * (SEGMENT - 1)  # of the windows of all layers
    distance = torch.arange(time)[:, None] - torch.arange(time)
    assert found[(distance < 0) | (distance > reach)].eq(0).all()
    assert found[(distance >= 0) & (distance <= reach)].gt(0).all()


def test_as_published_every_logit_depends_on_all_tokens_of_its_segment_the_later_ones_too():
    found = influence(make_tensorized(paper_leaky=True).double(), 3 * SEGMENT)
    segment = torch.arange(3 * SEGMENT) // SEGMENT
    assert torch.equal(found > 0, segment[:, None] == segment)
    assert found.triu(1).gt(0).any()


def test_several_core_tensors_compute_what_one_with_their_mean_does():
    several, one, ids = make_tensorized(num_attention_heads=3).double(), make_tensorized().double(), token_ids(2, 9)
    state = several.state_dict()
    one.load_state_dict(
        {name: value.mean(dim=0, keepdim=True) if "core" in name else value for name, value in state.items()}
    )
    torch.testing.assert_close(one(ids).logits, several(ids).logits)


@pytest.mark.parametrize("numbers", [1, 300, 2000])
def test_a_text_that_is_read_part_by_part_gives_the_same(numbers, monkeypatch):
    model, ids = make_tensorized().double(), token_ids(2, 13)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    for given_mask in (None, mask):
        expected = model(ids, attention_mask=given_mask).logits.detach()
        with monkeypatch.context() as patch, torch.no_grad():
            patch.setattr(attention, "MOST_NUMBERS", numbers)
            torch.testing.assert_close(model(ids, attention_mask=given_mask).logits, expected)
