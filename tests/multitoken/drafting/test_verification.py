import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hf_targets.multitoken.drafting.drafts import Draft, empty_draft
from hf_targets.multitoken.drafting.verification import verify

VOCAB = 4
NUM_ROWS = 20_000


def as_they_are(tokens, logits):
    return logits


def depends_on_words(tokens, logits):
    """Logits that another token wins, depending on the tokens before it."""
    shift = (tokens * torch.arange(1, tokens.shape[1] + 1)).sum(dim=1) % VOCAB
    return logits.gather(1, (torch.arange(VOCAB) + shift[:, None]) % VOCAB)


def walk(draft, logits, process, row):
    """The tokens of one row, and the positions whose logits gave them, one after another."""
    position, tokens, positions = 0, [], []
    while True:
        given_logits = process(torch.tensor([tokens], dtype=torch.long), logits[row, position][None])[0]
        tokens.append(int(given_logits.argmax()))
        positions.append(position)
        children = [
            node + 1
            for node in range(draft.tokens.shape[1])
            if draft.exists[row, node]
            and draft.parents[row, node] == position
            and draft.tokens[row, node] == tokens[-1]
        ]
        if not children:
            return tokens, positions
        position = children[0]


@st.composite
def trees(draw):
    """A draft whose rows have trees of the same depths and anything else, and logits for all of its positions."""
    rows, sizes = draw(st.integers(1, 4)), draw(st.lists(st.integers(1, 5), max_size=4))
    depths = [n for n, size in enumerate(sizes, start=1) for _ in range(size)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    parents, first, above = torch.zeros(rows, 0, dtype=torch.long), 0, 1
    for size in sizes:
        level = first + torch.randint(0, above, (rows, size), generator=generator)
        parents, first, above = torch.cat([parents, level], dim=1), 1 + parents.shape[1], size
    tokens = torch.randint(0, VOCAB, parents.shape, generator=generator)
    exists = torch.rand(parents.shape, generator=generator) < draw(st.sampled_from([0.7, 1.0]))
    logits = torch.randn(rows, len(depths) + 1, VOCAB, generator=generator)
    if draw(st.booleans()):  # tokens that are often drafted, for long walks
        logits[..., :2] += 3.0
        tokens = tokens % 2
    return Draft(tokens, parents, depths, exists), logits


@pytest.mark.parametrize("process", [as_they_are, depends_on_words])
@given(drafted=trees())
def test_greedy_rows_go_as_far_as_a_walk_along_the_most_probable_words(process, drafted):
    draft, logits = drafted
    seen = []

    def record(tokens, here):
        seen.append((here, process(tokens, here)))
        return seen[-1][1]

    found = verify(draft, logits, record, sample=False)
    walks = [walk(draft, logits, process, row) for row in range(len(logits))]
    assert found.counts.tolist() == [len(tokens) for tokens, _ in walks]
    for row, (tokens, positions) in enumerate(walks):
        assert found.tokens[row, : len(tokens)].tolist() == tokens
        assert found.positions[row, : len(tokens)].tolist() == positions
        for step, index in enumerate(positions):
            assert torch.equal(found.logits[step][row], logits[row, index])
    longest = int(found.counts.max())
    assert found.tokens.shape == found.positions.shape == (len(logits), longest)
    assert (len(found.scores), len(found.logits)) == (longest, longest)
    for raw, scores, (here, processed) in zip(found.logits, found.scores, seen, strict=True):
        assert raw is here
        assert scores is processed


def test_a_row_goes_no_further_than_its_end_and_draws_no_more():
    draft = Draft(torch.tensor([[2, 3, 2]] * 2), torch.tensor([[0, 1, 2]] * 2), [1, 2, 3], torch.ones(2, 3).bool())
    logits = torch.full((2, 4, VOCAB), -1000.0)
    for position, token in enumerate([2, 3, 2, 1]):
        logits[:, position, token] = 0.0
    for sample in (False, True):
        for ends, count in (([3, 5], 2), ([1], 4), ([2], 1)):
            torch.manual_seed(0)
            found = verify(draft, logits, as_they_are, sample=sample, end_tokens=torch.tensor(ends))
            assert found.counts.tolist() == [count] * 2 and found.tokens.shape[1] == count
            after = torch.rand(1)
            torch.manual_seed(0)
            for position in range(count) if sample else ():
                torch.multinomial(logits[:, position].softmax(dim=-1), 1)
            assert torch.equal(after, torch.rand(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_processors_are_given_float32(dtype):
    dtypes = []
    verify(
        empty_draft(2, torch.device("cpu")),
        torch.randn(2, 1, VOCAB, dtype=dtype),
        lambda tokens, logits: dtypes.append(logits.dtype) or logits,
        sample=False,
    )
    assert dtypes == [torch.float32]


class Texts:
    """Distributions of three tokens, each given those before it; token 3 never follows itself."""

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        self._tables = [torch.randn(*[VOCAB] * (n + 1), generator=generator) * 1.5 for n in range(3)]
        self._tables[1][3, 3] = self._tables[2][:, 3, 3] = -torch.inf

    def logits(self, tokens):
        """After `tokens` (rows, n)."""
        return self._tables[tokens.shape[1]][tuple(tokens.T)].expand(len(tokens), VOCAB)

    def draw(self, tokens):
        """Append tokens until there are three."""
        while tokens.shape[1] < 3:
            tokens = torch.cat([tokens, torch.multinomial(self.logits(tokens).softmax(dim=1), 1)], dim=1)
        return tokens

    def probabilities(self):
        first, second, third = (table.double().softmax(dim=-1) for table in self._tables)
        return (first[:, None, None] * second[:, :, None] * third).flatten()


def finished(found, model):
    """Each row's tokens, and where there are fewer than three, those that the model draws after them."""
    texts = torch.zeros(len(found.tokens), 3, dtype=torch.long)
    for count in (1, 2, 3):
        here = found.counts == count
        texts[here] = model.draw(found.tokens[here, :count])
    return texts


def assert_texts_of(texts, model):
    wanted = model.probabilities()
    counts = torch.bincount((texts * torch.tensor([VOCAB**2, VOCAB, 1])).sum(dim=1), minlength=VOCAB**3)
    possible = wanted > 0
    assert not counts[~possible].any()
    wanted = wanted[possible] * len(texts)
    common = wanted >= 5
    observed = torch.cat([counts[possible][common], counts[possible][~common].sum()[None]]).numpy()
    expected = torch.cat([wanted[common], wanted[~common].sum()[None]]).numpy()
    assert stats.chisquare(observed, expected, sum_check=False).pvalue > 1e-3


def chain_of(draft_model, exists):
    """A chain of two tokens for each row, drawn from a model of its own, and the logits that it was drawn from."""
    tokens = draft_model.draw(torch.zeros(NUM_ROWS, 0, dtype=torch.long))[:, :2]
    logits = torch.stack([draft_model.logits(tokens[:, :n]) for n in range(2)], dim=1)
    tokens, logits = tokens.where(exists, 0), logits.where(exists[..., None], 0.0)  # what is not there says nothing
    return Draft(tokens, torch.arange(2).expand(NUM_ROWS, 2), [1, 2], exists, logits)


def verified_texts(draft, model):
    paths = {0: torch.zeros(NUM_ROWS, 0, dtype=torch.long)}
    for node in range(len(draft.depths)):  # parents are the same in all rows here
        paths[node + 1] = torch.cat([paths[int(draft.parents[0, node])], draft.tokens[:, node : node + 1]], dim=1)
    logits = torch.stack([model.logits(path) for path in paths.values()], dim=1)
    found = verify(draft, logits, as_they_are, sample=True)
    return found, finished(found, model)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("ragged", [False, True])
def test_sampled_chains_leave_the_distribution_of_the_model(seed, ragged):
    model, lengths = Texts(seed), torch.full((NUM_ROWS, 1), 2)
    if ragged:
        lengths = torch.arange(NUM_ROWS)[:, None] % 3
    draft = chain_of(Texts(seed + 10), torch.arange(2) < lengths)
    found, texts = verified_texts(draft, model)
    assert_texts_of(texts, model)
    assert (found.counts <= lengths[:, 0] + 1).all()
    assert found.counts.max() == 3


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sampled_trees_leave_the_distribution_of_the_model(seed):
    tokens = torch.tensor([1, 3, 0, 2, 3, 0])  # 1 and 3, and after 1: 0 and 2, after 3: 3 and 0
    parents = torch.tensor([0, 0, 1, 1, 2, 2])
    exists = torch.ones(NUM_ROWS, 6, dtype=torch.bool)
    model = Texts(seed)
    draft = Draft(tokens.expand_as(exists), parents.expand_as(exists), [1, 1, 2, 2, 2, 2], exists)
    found, texts = verified_texts(draft, model)
    assert_texts_of(texts, model)
    drafted = {(1,): [0, 2], (3,): [3, 0]}
    for text, count in zip(texts[:500].tolist(), found.counts[:500].tolist(), strict=True):
        following = drafted.get((text[0],))
        assert count == (1 if following is None else 3 if text[1] in following else 2)
