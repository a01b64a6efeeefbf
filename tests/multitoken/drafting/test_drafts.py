from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from hf_targets.multitoken.drafting.drafts import Draft, draft_chain, draft_tree

VOCAB, DIM, HEADS, ROWS = 4, 5, 3, 3
seeds = st.integers(0, 10_000)


class Tables:
    """Heads that look the tokens up which they are given: fixed random logits for every path, in float64."""

    def __init__(self, seed: int, *, sequential: bool, reads_words: bool = True):
        generator = torch.Generator().manual_seed(seed)
        self.sequential = sequential
        self._maps = torch.randn(HEADS, DIM, DIM, generator=generator).double()
        self._output = torch.randn(DIM, VOCAB, generator=generator).double()
        self._by_path = [torch.randn(VOCAB**n, VOCAB, generator=generator).double() for n in range(1, HEADS + 1)]
        if not reads_words:
            self._by_path = [torch.zeros_like(table) for table in self._by_path]

    def future_states(self, hidden, count):
        return torch.stack([hidden @ self._maps[n] for n in range(count)], dim=1)

    def future_logits(self, states, tokens):
        assert self.sequential, "guesses that need no other are made at once"
        n = tokens.shape[1]
        path = (tokens * VOCAB ** torch.arange(n)).sum(dim=1)
        return states @ self._output + self._by_path[n - 1][path]

    def parallel_logits(self, states):
        assert not self.sequential, "guesses that depend on each other are made one after another"
        return states @ self._output

    def whole_logits(self, logits):
        return logits

    def drafted_ids(self, places):
        return places

    def log_probabilities(self, hidden, tokens):
        """The distribution after tokens (n,) of one row with hidden state (dim,), by the definition."""
        logits = self.future_states(hidden[None], len(tokens))[:, -1] @ self._output
        if self.sequential:
            logits = self.future_logits(self.future_states(hidden[None], len(tokens))[:, -1], torch.tensor([tokens]))
        return logits[0].log_softmax(dim=0).tolist()


def start(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, DIM, generator=generator).double(), torch.randint(0, VOCAB, (ROWS,), generator=generator)


def most_probable(logits, drafted):
    return logits.argmax(dim=-1), logits


def paths_of(draft, row):
    """The tokens of every node's path, by walking from child to parent."""
    found = []
    for node in range(draft.tokens.shape[1]):
        tokens, position = [], node + 1
        while position:
            tokens.append(int(draft.tokens[row, position - 1]))
            assert draft.parents[row, position - 1] < position
            position = int(draft.parents[row, position - 1])
        found.append(tuple(reversed(tokens)))
    return found


def assume_order(scores):
    """Leave out draws whose scores are so near each other that float32 may order them otherwise."""
    assume(all(before - after > 1e-5 for before, after in pairwise(scores)))


def grow(model, hidden, token, count, branches):
    """The best paths of every length with their log probabilities, each level grown from the one before."""
    levels, level = [], [((), 0.0)]
    for _ in range(count):
        longer = []
        for path, score in level:
            following = model.log_probabilities(hidden, (token, *path))
            longer += [((*path, w), score + following[w]) for w in range(VOCAB)]
        longer.sort(key=lambda one: -one[1])
        assume_order([score for _, score in longer[: branches + 1]])
        level = longer[:branches]
        levels.append(level)
    return levels


@pytest.mark.parametrize("sequential", [True, False])
@given(seed=seeds, count=st.integers(1, HEADS))
def test_a_chain_takes_the_most_probable_word_after_those_before_it(sequential, seed, count):
    model, (hidden, next_tokens) = Tables(seed, sequential=sequential), start(seed)
    draft = draft_chain(model, hidden, next_tokens, count, most_probable, keep_logits=True)
    assert draft.depths == list(range(1, count + 1))
    assert draft.exists.all()
    for row in range(ROWS):
        tokens = [int(next_tokens[row])]
        for n in range(count):
            expected = model.log_probabilities(hidden[row], tuple(tokens))
            assume_order(sorted(expected, reverse=True)[:2])
            torch.testing.assert_close(draft.logits[row, n].log_softmax(dim=0), torch.tensor(expected))
            tokens.append(max(range(VOCAB), key=lambda token: expected[token]))
        assert draft.tokens[row].tolist() == tokens[1:]
        assert paths_of(draft, row)[-1] == tuple(tokens[1:])


@given(seed=seeds, count=st.integers(1, HEADS), branches=st.integers(1, 6))
def test_guesses_that_do_not_depend_on_words_are_the_same_at_once_and_one_after_another(seed, count, branches):
    hidden, next_tokens = start(seed)
    both = [Tables(seed, sequential=sequential, reads_words=False) for sequential in (True, False)]
    chains = [draft_chain(model, hidden, next_tokens, count, most_probable, keep_logits=True) for model in both]
    trees = [draft_tree(model, hidden, next_tokens, count, branches) for model in both]
    for one, other in (chains, trees):
        assert torch.equal(one.tokens, other.tokens)
        assert torch.equal(one.parents, other.parents)
        assert one.depths == other.depths
    torch.testing.assert_close(chains[0].logits, chains[1].logits)


def test_what_chooses_sees_the_words_drafted_before_and_its_logits_are_kept():
    model, (hidden, next_tokens) = Tables(0, sequential=True), start(0)
    seen = []

    def choose(logits, drafted):
        seen.append(drafted)
        return torch.full((ROWS,), len(seen) % VOCAB), logits.new_full(logits.shape, len(seen))

    draft = draft_chain(model, hidden, next_tokens, 3, choose, keep_logits=True)
    assert draft.tokens.tolist() == [[1, 2, 3]] * ROWS
    assert [tokens.tolist() for tokens in seen] == [[[]] * ROWS, [[1]] * ROWS, [[1, 2]] * ROWS]
    assert draft.logits[0, :, 0].tolist() == [1, 2, 3]
    assert draft_chain(model, hidden, next_tokens, 3, choose, keep_logits=False).logits is None


@pytest.mark.parametrize("sequential", [True, False])
@given(seed=seeds, count=st.integers(1, HEADS), branches=st.integers(1, 9))
def test_a_level_of_a_tree_holds_the_best_continuations_of_the_level_before(sequential, seed, count, branches):
    model, (hidden, next_tokens) = Tables(seed, sequential=sequential), start(seed)
    draft = draft_tree(model, hidden, next_tokens, count, branches)
    assert draft.exists.all()
    assert draft.logits is None
    for row in range(ROWS):
        levels = grow(model, hidden[row], int(next_tokens[row]), count, branches)
        assert paths_of(draft, row) == [path for level in levels for path, _ in level]
        assert draft.depths == [n for n, level in enumerate(levels, start=1) for _ in level]


@given(seed=seeds, count=st.integers(1, HEADS), branches=st.integers(1, 6), nodes=st.integers(1, 18))
def test_the_nodes_that_a_tree_keeps_are_its_most_probable_ones(seed, count, branches, nodes):
    model, (hidden, next_tokens) = Tables(seed, sequential=True), start(seed)
    levels = [grow(model, hidden[row], int(next_tokens[row]), count, branches) for row in range(ROWS)]
    for row in range(ROWS):
        best = sorted((one for level in levels[row] for one in level), key=lambda one: -one[1])
        assume_order([score for _, score in best[: nodes + 1]])
        draft = draft_tree(model, hidden[row : row + 1], next_tokens[row : row + 1], count, branches, nodes)
        assert draft.exists.all()
        assert sorted(paths_of(draft, 0)) == sorted(path for path, _ in best[:nodes])
        assert draft.depths == list(map(len, paths_of(draft, 0)))
    kept = draft_tree(model, hidden, next_tokens, count, branches, nodes)
    assert len(kept.depths) == min(nodes, sum(map(len, levels[0])))
    for row in range(ROWS):
        known = {(): 0} | {path: at + 1 for at, path in enumerate(paths_of(kept, row)) if kept.exists[row, at]}
        assert len(known) == 1 + kept.exists[row].sum()
        grown = {()} | {path for level in levels[row] for path, _ in level}
        assert {path[:-1] for path in known if path} <= known.keys() <= grown


def test_a_tree_of_one_branch_is_the_chain():
    model, (hidden, next_tokens) = Tables(1, sequential=True), start(1)
    tree = draft_tree(model, hidden, next_tokens, HEADS, 1)
    chain = draft_chain(model, hidden, next_tokens, HEADS, most_probable, keep_logits=False)
    assert torch.equal(tree.tokens, chain.tokens)
    assert torch.equal(tree.parents, chain.parents)
    assert tree.depths == chain.depths


@given(data=st.data(), nodes=st.integers(0, 7), rows=st.integers(1, 3))
def test_ancestors_are_those_met_on_the_way_to_the_last_known_word(data, nodes, rows):
    parents = [[data.draw(st.integers(0, node)) for node in range(nodes)] for _ in range(rows)]
    parents = torch.tensor(parents, dtype=torch.long).view(rows, nodes)
    visible = Draft(parents, parents, [nodes] * nodes, torch.ones_like(parents, dtype=torch.bool)).ancestors()
    for row in range(rows):
        for index in range(nodes + 1):
            path, at = {index}, index
            while at:
                at = int(parents[row, at - 1])
                path.add(at)
            assert visible[row, index].nonzero()[:, 0].tolist() == sorted(path)


@pytest.mark.parametrize("sequential", [True, False])
@pytest.mark.parametrize("count", [0, -1])
def test_a_draft_of_no_words_is_empty(sequential, count):
    model, (hidden, next_tokens) = Tables(0, sequential=sequential), start(0)
    chain = draft_chain(model, hidden, next_tokens, count, most_probable, keep_logits=True)
    for draft in (chain, draft_tree(model, hidden, next_tokens, count, 3)):
        assert draft.tokens.shape == draft.parents.shape == draft.exists.shape == (ROWS, 0)
        assert draft.depths == []
        assert draft.logits is None
        assert draft.ancestors().tolist() == [[[True]]] * ROWS
