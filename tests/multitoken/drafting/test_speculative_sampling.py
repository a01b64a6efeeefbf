import pytest
import torch
from scipy import stats

from hf_targets.multitoken.drafting.verification import accept_or_resample

NEVER = -torch.inf
PAIRS = {  # logits of the model, p, and of the draft, q
    "any": ([1.0, 0.0, -1.0, 0.5], [-1.0, 2.0, 0.3, 0.0]),
    "equal": ([0.3, -0.2, 1.0, 0.0], [0.3, -0.2, 1.0, 0.0]),
    "disjoint": ([0.5, 0.0, NEVER, NEVER], [NEVER, NEVER, 1.0, 0.0]),
    "forbidden by both": ([NEVER, 0.0, 1.0, 0.2], [0.0, 1.0, NEVER, 0.5]),
    "forbidden to the model": ([NEVER, NEVER, 1.0, 0.2], [2.0, 1.0, 0.0, 0.5]),
    "forbidden to the draft": ([1.5, 1.0, 0.0, 0.5], [NEVER, NEVER, 1.0, 0.2]),
    "certain draft": ([0.4, 0.0, -0.5, 0.1], [NEVER, 0.0, NEVER, NEVER]),
    "certain model": ([NEVER, NEVER, NEVER, 0.0], [0.0, 0.0, 0.0, 0.0]),
}
pairs = pytest.mark.parametrize("name", PAIRS)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)


def logits_of(name, dtype=torch.float32):
    return [torch.tensor(logits, dtype=dtype) for logits in PAIRS[name]]


def draw(name, num_draws, dtype=torch.float32):
    """Return drafts sampled from q, the tokens that come of them, and which drafts were accepted."""
    model, draft = logits_of(name, dtype)
    drafted = torch.multinomial(draft.float().softmax(dim=0), num_draws, replacement=True)
    return drafted, *accept_or_resample(drafted, draft.expand(num_draws, -1), model.expand(num_draws, -1))


def assert_drawn_from(tokens, probabilities):
    possible = probabilities > 0
    counts = torch.bincount(tokens, minlength=len(probabilities))
    assert not counts[~possible].any()
    if possible.sum() > 1:
        expected = probabilities[possible].double()
        wanted = expected / expected.sum() * len(tokens)
        assert stats.chisquare(counts[possible].numpy(), wanted.numpy()).pvalue > 1e-3


@pairs
@dtypes
def test_words_have_the_distribution_of_the_model_whatever_the_draft(name, dtype):
    drafted, tokens, accepted = draw(name, 40_000, dtype)
    assert_drawn_from(tokens, logits_of(name, dtype)[0].double().softmax(dim=0))
    assert torch.equal(tokens[accepted], drafted[accepted])


@pairs
def test_words_drawn_after_a_rejection_are_those_the_draft_gives_too_little(name):
    p, q = (logits.softmax(dim=0) for logits in logits_of(name))
    _, tokens, accepted = draw(name, 40_000)
    if accepted.all():
        return
    assert_drawn_from(tokens[~accepted], (p - q).clamp(min=0.0) / (p - q).clamp(min=0.0).sum())


@pairs
def test_a_draft_is_accepted_with_the_probability_that_both_distributions_share(name, monkeypatch):
    model, draft = logits_of(name)
    p, q = model.softmax(dim=0), draft.softmax(dim=0)
    steps = 1000
    drafted = torch.arange(4).repeat_interleave(steps)
    uniform = ((torch.arange(steps) + 0.5) / steps).repeat(4)  # every chance alike, instead of luck
    monkeypatch.setattr(torch, "rand_like", lambda like: uniform.to(like))
    _, accepted = accept_or_resample(drafted, draft.expand(len(drafted), -1), model.expand(len(drafted), -1))
    share = accepted.view(4, steps).float().mean(dim=1)
    torch.testing.assert_close(q * share, torch.minimum(p, q), rtol=0, atol=1 / steps)
    torch.testing.assert_close((q * share).sum(), torch.minimum(p, q).sum(), rtol=0, atol=1 / steps)


@pytest.mark.parametrize("chance", [0.0, 0.5, 1 - 2**-24], ids=str)
@dtypes
def test_a_draft_from_the_same_distribution_is_always_accepted(chance, dtype, monkeypatch):
    logits = torch.randn(200, 11, dtype=torch.float32).to(dtype) * 4
    logits[:, 3] = NEVER
    drafted = torch.multinomial(logits.float().softmax(dim=1), 1)[:, 0]
    monkeypatch.setattr(torch, "rand_like", lambda like: torch.full_like(like, chance))
    tokens, accepted = accept_or_resample(drafted, logits, logits)
    assert accepted.all()
    assert torch.equal(tokens, drafted)


@pytest.mark.parametrize("chance", [0.0, 0.5], ids=str)
def test_a_draft_that_the_model_cannot_give_is_never_returned(chance, monkeypatch):
    logits, draft = torch.randn(500, 6), torch.randn(500, 6)
    drafted = torch.randint(0, 6, (500,))
    logits[torch.arange(500), drafted] = NEVER
    monkeypatch.setattr(torch, "rand_like", lambda like: torch.full_like(like, chance))
    tokens, accepted = accept_or_resample(drafted, draft, logits)
    assert not accepted.any()
    assert (tokens != drafted).all()


def test_where_rounding_leaves_no_residual_a_word_of_the_model_is_drawn():
    logits = torch.tensor([[NEVER, 0.0, 1.0]]).expand(2000, 3)
    impossible = torch.zeros(2000, dtype=torch.long)  # no sample of q, as only rounding can bring it
    tokens, accepted = accept_or_resample(impossible, logits, logits)
    assert not accepted.any()
    assert_drawn_from(tokens, logits[0].softmax(dim=0))


def test_rows_are_independent_of_each_other():
    names = list(PAIRS)
    model, draft = (torch.stack([logits_of(name)[i] for name in names]) for i in (0, 1))
    rows = torch.arange(len(names)).repeat(8000)
    drafted = torch.multinomial(draft.softmax(dim=1)[rows], 1)[:, 0]
    tokens, _ = accept_or_resample(drafted, draft[rows], model[rows])
    for row in range(len(names)):
        assert_drawn_from(tokens[rows == row], model[row].softmax(dim=0))
