import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from hf_targets.multitoken.drafting.drafts import Draft, Found, draft_chain_as_text, empty_draft
from hf_targets.multitoken.drafting.lookup import MOST, Lookup, SortedTexts, TextIndex, beside, extended, for_half
from hf_targets.multitoken.drafting.verification import verify

VOCAB = 12
TEXT = [5, 6, 7, 8, 9, 5]
few = st.lists(st.integers(0, 2), max_size=40)


def chain(tokens, logits=None):
    tokens = torch.tensor(tokens)
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    exists = torch.ones_like(tokens, dtype=torch.bool)
    return Draft(tokens, positions, list(range(1, tokens.shape[1] + 1)), exists, logits)


def longest(texts, last):
    """The longest match of the last tokens, by trying all places."""
    sizes = [
        size
        for text in texts
        for place in range(1, len(text) + 1)
        for size in range(1, min(place, len(last), MOST) + 1)
        if text[place - size : place] == last[-size:]
    ]
    return max(sizes, default=0)


@given(text=few)
def test_a_text_finds_the_longest_match_in_itself_however_it_grew_and_of_equals_the_latest(text):
    index = TextIndex(text[:4])
    for token in text[4:]:
        index.extend([token])
    size, place = index.find(text)
    expected = longest([text[:-1]], text)
    assert size == expected and text[place - size : place] == text[-size:][:size]
    assert not any(text[at - size : at] == text[place - size : place] for at in range(place + 1, len(text)) if size)


@given(texts=st.lists(few, max_size=4), last=few)
@example(texts=[[n, *range(14)] for n in (3, 1, 4, 2, 0)], last=[1, *range(14)])
def test_sorted_texts_find_the_longest_match_and_never_across_two_texts(texts, last):
    found = SortedTexts(texts)
    size, place = found.find(last)
    assert size == longest(texts, last)
    assert found.tokens[place - size : place].tolist() == last[len(last) - size :]
    assert -1 not in found.following(place, 9)


def test_a_match_at_the_end_goes_on_as_a_repetition_and_one_before_a_part_ends_there():
    assert TextIndex([1, 2, 3, 1, 2, 3]).following(3, 7) == [1, 2, 3, 1, 2, 3, 1]
    assert TextIndex([1, 2, 3, -1, 4]).following(1, 7) == [2, 3]


def test_a_draft_is_as_long_as_its_match_and_a_match_elsewhere_must_be_two_tokens_longer():
    rows = [TextIndex([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3])] * 8
    assert Lookup(9, rows, {}).find(0, 9) == ([4, 5, 6], "text")
    assert Lookup(2, rows, {}).find(0, 9) == Lookup(9, rows, {}).find(0, 2) == ([4, 5], "text")
    for num_rows, tokens in ((1, [2, 3, 4]), (8, [2])):  # a row alone has tokens to spare
        assert Lookup(9, [TextIndex([1, 2, 3, 4, 5, 1])] * num_rows, {}).find(0, 9).tokens == tokens
    assert Lookup(9, rows, {}, least=4).find(0, 9) == Lookup(9, rows, {}).find(0, 0) == ([], "")
    for before, source in (([8, 9], "text"), ([7, 8, 9], "others")):
        others = {"others": SortedTexts([[*before, 1, 2, 3, 0, 0, 0, 0, 0, 0]])}
        assert Lookup(9, rows, others).find(0, 9).source == source
        assert Lookup(9, rows, others, in_text=False).find(0, 9).tokens == [0] * (3 + len(before))
    assert Lookup(9, rows, {}).find(0, 9, sure=[4, 5]).tokens == [6, 7, 8, 9, 1]


@given(
    kept=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    found=st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=4, max_size=4),
)
def test_found_tokens_follow_those_that_are_kept_and_a_row_without_any_stays(kept, found):
    tokens = [[7, 8, 9]] * len(kept)
    found = [Found(one, "text") for one in found[: len(kept)]]
    logits = torch.randn(len(kept), 3, VOCAB)
    draft = extended(chain(tokens, logits), found, kept)
    for row, (sure, one) in enumerate(zip(kept, found, strict=True)):
        sure = sure if one.tokens else 3
        assert draft.tokens[row][draft.exists[row]].tolist() == tokens[row][:sure] + one.tokens
        assert draft.found[row] == (sure, one) and torch.equal(draft.logits[row, :sure], logits[row, :sure])
        for index in range(sure, sure + len(one.tokens)):
            certain = torch.nn.functional.one_hot(draft.tokens[row, index], VOCAB)
            assert torch.equal(draft.logits[row, index].softmax(dim=0), certain.float())
    alone = extended(empty_draft(len(kept), torch.device("cpu")), found, [0] * len(kept))
    assert alone.logits is None and alone.exists.sum(dim=1).tolist() == [len(one.tokens) for one in found]


two_of_four = st.permutations(range(4)).map(lambda tokens: tokens[:2])
rows_of_trees = st.tuples(two_of_four, two_of_four, st.lists(st.integers(0, 1), min_size=2, max_size=2))


@given(trees=st.lists(rows_of_trees, min_size=1, max_size=4), found=st.lists(st.lists(st.integers(0, 3), max_size=4)))
def test_what_was_found_is_a_path_of_the_tree_and_no_path_is_there_twice(trees, found):
    found = [Found(one, "text") for one in [*found, *[[]] * len(trees)][: len(trees)]]
    tokens = torch.tensor([[*first, *second] for first, second, _ in trees])
    parents = torch.tensor([[0, 0, 1 + one, 1 + other] for _, _, (one, other) in trees])
    tree = Draft(tokens, parents, [1, 1, 2, 2], torch.ones_like(tokens, dtype=torch.bool))
    draft = beside(tree, found) if any(one.tokens for one in found) else tree
    for row, (first, second, above) in enumerate(trees):
        paths = {(): 0}  # of each position
        for node in range(draft.tokens.shape[1]):
            if draft.exists[row, node]:
                [before] = [path for path, at in paths.items() if at == draft.parents[row, node]]
                assert len(before) == draft.depths[node] - 1
                path = (*before, int(draft.tokens[row, node]))
                assert path not in paths
                paths[path] = node + 1
        drafted = {(one,) for one in first} | {(first[at], one) for at, one in zip(above, second, strict=True)}
        looked_up = {tuple(found[row].tokens[:count]) for count in range(len(found[row].tokens) + 1)}
        assert {*paths} == drafted | looked_up | {()}


class Certain:
    """Heads whose guesses have fixed distributions."""

    sequential = False

    def __init__(self, probabilities):
        self._logits = torch.tensor(probabilities).log()

    def future_states(self, hidden, count):
        return hidden[:, None].expand(-1, count, -1)

    def parallel_logits(self, states):
        return self._logits[: states.shape[1]].expand(len(states), -1, -1)

    def whole_logits(self, logits):
        return logits

    def drafted_ids(self, places):
        return places


def drafts_of(heads, num_rows, count, threshold=0.4, *, sample=False):
    known = heads, torch.zeros(num_rows, 1), torch.zeros(num_rows).long(), count, lambda tokens, logits: logits
    return draft_chain_as_text(*known, sample=sample, processed=False, threshold=threshold)


def test_a_head_is_sure_of_a_token_from_the_threshold_on_and_none_after_an_unsure_one_counts():
    sure, unsure = [0.05] * 6 + [0.41] + [0.05] * 5, [0.06] * 6 + [0.39] + [0.05] * 5
    for heads, num_sure in (([sure, unsure], 1), ([unsure, sure], 0), ([sure, sure], 2)):
        assert drafts_of(Certain(heads), 1, 2).num_sure == [num_sure]
    assert drafts_of(Certain([sure, sure]), 1, 2, 0.5).num_sure == [0]


@pytest.mark.parametrize("probabilities", [[0.2, 0.8], [0.5, 0.3, 0.2]], ids=str)
def test_samples_have_the_distribution_of_the_model_with_looked_up_words(probabilities):
    num_rows, vocab = 4000, len(probabilities)
    draft = drafts_of(Certain([probabilities]), num_rows, 1, sample=True)
    draft = extended(draft, [Found([1], "text")] * num_rows, draft.num_sure)
    logits = torch.zeros(num_rows, draft.tokens.shape[1] + 1, vocab)  # the model itself gives all tokens alike
    first = verify(draft, logits, lambda tokens, logits: logits, sample=True).tokens[:, 0]
    assert stats.chisquare(torch.bincount(first, minlength=vocab).numpy()).pvalue > 1e-3


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=8), st.integers(0, 4))
def test_half_of_the_rows_need_the_longest_draft(rows, width):
    found = [Found([7] * count, "text" if count else "") for _, count in rows]
    cut = for_half(found, [kept for kept, _ in rows], width)
    lengths = [kept + len(one.tokens) for (kept, _), one in zip(rows, cut, strict=True) if one.tokens]
    longest = max([width, *lengths])
    assert longest == width or 2 * sum(kept + count >= longest for kept, count in rows) >= len(rows)
    assert all(one.tokens == old.tokens for one, old in zip(cut, found, strict=True)) or len(rows) > 2
    assert all(bool(one.source) == bool(one.tokens) for one in cut)
