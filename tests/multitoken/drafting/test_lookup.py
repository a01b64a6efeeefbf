import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from transformers import GenerationConfig

from hf_targets.multitoken.drafting.chains import ChainDrafter, PromptLookup, TextIndex, draft_of
from hf_targets.multitoken.drafting.drafts import Draft
from hf_targets.multitoken.drafting.verification import verify

VOCAB = 12
TEXT = [5, 6, 7, 8, 9, 5]
SURE, UNSURE = 0.9, 0.1


def make_config(num_tokens=3, end_tokens=None, **settings):
    config = GenerationConfig(prompt_lookup_num_tokens=num_tokens, max_length=100, **settings)
    config._eos_token_tensor = None if end_tokens is None else torch.tensor(end_tokens)
    return config


def chain(tokens, logits=None):
    tokens = torch.tensor(tokens)
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    return Draft(
        tokens, positions, list(range(1, tokens.shape[1] + 1)), torch.ones_like(tokens, dtype=torch.bool), logits
    )


def extend(tokens, confidence, texts, logits=None, **config):
    texts = [torch.tensor([text]) for text in texts]
    return PromptLookup(make_config(**config)).extend(chain(tokens, logits), torch.tensor(confidence), texts)


def extended(tokens, confidence, text=TEXT, **config):
    """The tokens of one row."""
    draft = extend([tokens], [confidence], [text], **config)
    assert draft.exists.all()
    assert draft.parents.tolist() == [list(range(draft.tokens.shape[1]))]
    assert draft.depths == list(range(1, draft.tokens.shape[1] + 1))
    return draft.tokens[0].tolist()


def test_a_longer_match_is_preferred():
    text = [2, 3, 1, 3, 4, 2, 3]  # 3 came first before 1; 2 3 as well
    assert extended([0], [UNSURE], text=[1, 3, 9, *text], num_tokens=1) == [1]
    assert extended([0], [UNSURE], text=[1, 3, 9, *text], num_tokens=1, max_matching_ngram_size=1) == [9]


def test_a_match_ends_before_an_end_token():
    assert extended([1], [UNSURE], end_tokens=[8]) == [6, 7]
    assert extended([1], [UNSURE], end_tokens=[6]) == [1]


def test_a_word_is_sure_from_the_threshold_on_which_is_four_tenths_by_default():
    just_below = float(torch.nextafter(torch.tensor(0.4), torch.tensor(0.0)))
    assert extended([9], [0.4]) == [9, 5, 9]
    assert extended([9], [just_below]) == [6, 7, 8]
    assert extended([9], [SURE], assistant_confidence_threshold=0.95) == [6, 7, 8]
    assert extended([9], [UNSURE], assistant_confidence_threshold=0.0) == [9, 5, 9]


def test_a_match_ends_with_the_longest_text_to_which_a_source_does_not_count():
    config, one = make_config(), chain([[1]])
    config.max_length = len(TEXT) + 1
    for after_source, found in ((False, [[1]]), (True, [[6, 7, 8]])):
        lookup = PromptLookup(config, after_source=after_source)
        assert lookup.extend(one, torch.tensor([[UNSURE]]), [torch.tensor([TEXT])]).tokens.tolist() == found


def test_a_row_may_become_shorter_than_its_draft():
    assert extended([1, 1, 1], [UNSURE] * 3, num_tokens=1) == [6]
    logits = torch.randn(1, 3, VOCAB)
    draft = extend([[1, 1, 1]], [[UNSURE] * 3], [TEXT], logits, num_tokens=1)
    assert draft.logits.shape == (1, 1, VOCAB)


def test_words_found_are_certain_and_drafted_ones_keep_what_they_were_drawn_from():
    logits = torch.randn(3, 2, VOCAB)
    tokens, confidence = [[6, 1], [9, 8], [6, 7]], [[SURE, UNSURE], [UNSURE] * 2, [SURE] * 2]
    draft = extend(tokens, confidence, [TEXT, [1, 2, 3], TEXT], logits)
    assert draft.logits.shape == (3, 5, VOCAB)
    for row, kept in enumerate((1, 2, 2)):
        assert torch.equal(draft.logits[row, :kept], logits[row, :kept])
        for index in range(kept, int(draft.exists[row].sum())):
            certain = torch.nn.functional.one_hot(draft.tokens[row, index], VOCAB)
            assert torch.equal(draft.logits[row, index].softmax(dim=0), certain.float())


def follow(known, num_tokens):
    """The tokens after the first earlier occurrence of the last two tokens, or else of the last one."""
    for size in (2, 1):
        for start in range(len(known) - size):
            if known[start : start + size] == known[-size:]:
                return known[start + size :][:num_tokens]
    return []


@given(
    texts=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=9), min_size=1, max_size=4),
    data=st.data(),
    num_tokens=st.integers(1, 4),
    count=st.integers(1, 3),
)
def test_each_row_is_extended_as_if_it_were_alone(texts, data, num_tokens, count):
    tokens = data.draw(st.lists(st.lists(st.integers(0, 4), min_size=count, max_size=count), min_size=4, max_size=4))
    sure = data.draw(st.lists(st.integers(0, count), min_size=4, max_size=4))
    rows = len(texts)
    confidence = [[SURE] * n + [UNSURE] * (count - n) for n in sure[:rows]]
    draft = extend(tokens[:rows], confidence, texts, num_tokens=num_tokens)
    for row, text in enumerate(texts):
        kept = tokens[row][: sure[row]]
        match = follow(text + kept, num_tokens)
        assert draft.tokens[row][draft.exists[row]].tolist() == (kept + match if match else tokens[row])


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


def drafts_of(heads, texts, count, **config):
    texts = [torch.tensor([text]) for text in texts]
    next_tokens = torch.cat([text[0, -1:] for text in texts])
    drafter = ChainDrafter(heads, make_config(**config))
    assert drafter.reads_text
    return drafter.draft(torch.zeros(len(texts), 1), next_tokens, count, lambda tokens, logits: logits, texts)


def test_a_drafter_is_as_sure_of_a_word_as_its_head_is():
    sure, unsure = [0.02] * 6 + [0.9] + [0.02] * 5, [0.08] * 6 + [0.1] + [0.08] * 5
    assert drafts_of(Certain([sure, unsure]), [TEXT], 2).tokens.tolist() == [[6, 7, 8, 9]]
    assert drafts_of(Certain([unsure, sure]), [TEXT], 2).tokens.tolist() == [[6, 7, 8]]
    assert drafts_of(Certain([sure, sure]), [TEXT], 0).tokens.shape == (1, 0)


@pytest.mark.parametrize("probabilities", [[0.2, 0.8], [0.5, 0.3, 0.2]], ids=str)
def test_samples_have_the_distribution_of_the_model_with_looked_up_words(probabilities):
    num_rows, vocab = 4000, len(probabilities)
    draft = drafts_of(Certain([probabilities]), [[0, 1, 0]] * num_rows, 1, num_tokens=1, do_sample=True)
    logits = torch.zeros(num_rows, draft.tokens.shape[1] + 1, vocab)  # the model itself gives all tokens alike
    first = verify(draft, logits, lambda tokens, logits: logits, sample=True).tokens[:, 0]
    assert stats.chisquare(torch.bincount(first, minlength=vocab).numpy()).pvalue > 1e-3


@given(text=st.lists(st.integers(0, 2), min_size=1, max_size=20), size=st.integers(1, 3), count=st.integers(1, 4))
def test_an_index_finds_what_came_after_the_last_tokens_where_they_stood_last(text, size, count):
    index = TextIndex(text[:4], size)
    for token in text[4:]:
        index.extend([token])
    starts = [at for at in range(size, len(text)) if text[at - size : at] == text[-size:]]
    assert index.following(count) == (text[starts[-1] :][:count] if starts else [])


def test_found_tokens_of_several_rows_are_a_draft_as_long_as_each_is():
    draft = draft_of([[5, 6], [], [7]], torch.device("cpu"))
    assert draft.tokens.shape == (3, 2) and draft.tokens[draft.exists].tolist() == [5, 6, 7]
    assert draft.exists.sum(dim=1).tolist() == [2, 0, 1]
    assert (draft.parents.tolist(), draft.depths) == ([[0, 1]] * 3, [1, 2])
