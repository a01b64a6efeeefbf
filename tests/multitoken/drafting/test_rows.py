import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.streamers import BaseStreamer

from hf_targets.multitoken.drafting.rows import Rows
from hf_targets.multitoken.drafting.verification import Verified

VOCAB, BATCH, PROMPT, MAX_LENGTH, PAD = 8, 3, 4, 14, 7
MAX_STEPS = 5
END_TOKENS = [[1], [2, 3]]
END_PAIR = (4, 5)


class EndsOnPair(StoppingCriteria):
    """Stops a row after two given tokens; blind to any token that it is not shown as the last."""

    def __call__(self, input_ids, scores, **kwargs):
        return (input_ids[:, -2:] == torch.tensor(END_PAIR)).all(dim=1)


class EndsOnOwnWord(StoppingCriteria):
    """Stops each row of the batch on a token of its own."""

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] == torch.tensor([4, 5, 6])


class Record(BaseStreamer):
    def __init__(self):
        self.columns, self.ended = [], 0

    def put(self, value):
        assert not self.ended
        self.columns.append(value.tolist())

    def end(self):
        self.ended += 1


def prompts(seed=0):
    return torch.randint(4, VOCAB, (BATCH, PROMPT), generator=torch.Generator().manual_seed(seed))


def make_rows(processors=(), criteria=(), streamer=None, **config):
    config = GenerationConfig(max_length=MAX_LENGTH, **config)
    config._pad_token_tensor = torch.tensor(PAD)
    return Rows(
        prompts(),
        LogitsProcessorList(processors),
        StoppingCriteriaList([*criteria, MaxLengthCriteria(MAX_LENGTH)]),
        config,
        streamer=streamer,
        scratch=MAX_STEPS,
    )


def found(tokens, counts, vocab=VOCAB):
    steps = [torch.zeros(len(tokens), vocab)] * tokens.shape[1]
    return Verified(tokens, counts, torch.zeros_like(tokens), steps, steps)


def append_one_by_one(texts, row, tokens, criteria):
    """Extend a text until a rule stops it; return how many tokens were appended, and whether it is finished."""
    for count, token in enumerate(tokens, start=1):
        texts[row].append(token)
        done = criteria(torch.tensor([texts[row]] * BATCH), None)[row]
        if done or len(texts[row]) >= MAX_LENGTH:
            return count, True
    return len(tokens), False


def grow(rows, *, lengths):
    """Append random tokens, so that rows have these lengths."""
    more = torch.tensor(lengths) - PROMPT
    rows.append(torch.arange(BATCH), found(torch.randint(4, VOCAB, (BATCH, int(more.max()))), more))


@st.composite
def rounds(draw):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    low = draw(st.sampled_from([1, 4]))  # with end tokens, and without
    several = []
    for steps in draw(st.lists(st.integers(1, MAX_STEPS), min_size=1, max_size=6)):
        tokens = torch.randint(low, VOCAB, (BATCH, steps), generator=generator)
        several.append((tokens, torch.randint(1, steps + 1, (BATCH,), generator=generator)))
    return several


@given(
    several=rounds(),
    kinds=st.sets(st.sampled_from(["first end", "second end", "pair", "own token"])),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_rows_stop_where_a_loop_over_single_words_stops_them(several, kinds):
    known = {
        "first end": EosTokenCriteria(END_TOKENS[0]),
        "second end": EosTokenCriteria(END_TOKENS[1]),
        "pair": EndsOnPair(),
        "own token": EndsOnOwnWord(),
    }
    criteria = StoppingCriteriaList([known[kind] for kind in sorted(kinds)])
    streamer = Record()
    rows, texts, active = make_rows(criteria=criteria, streamer=streamer), prompts().tolist(), torch.arange(BATCH)
    for tokens, counts in several:
        here = found(tokens[active], counts[active])
        taken, finished = rows.append(active, here)
        expected = [
            append_one_by_one(texts, row, tokens[row, : counts[row]].tolist(), criteria) for row in active.tolist()
        ]
        assert list(zip(taken.tolist(), finished.tolist(), strict=True)) == expected
        assert [text[0].tolist() for text in rows.texts(torch.arange(BATCH))] == texts
        longest = max(map(len, texts))
        assert rows.sequences().tolist() == [text + [PAD] * (longest - len(text)) for text in texts]

        active = active[~finished]
        rows.stream(active)
        reached = min((len(texts[row]) for row in active.tolist()), default=longest)
        assert streamer.columns == rows.sequences()[:, PROMPT:reached].T.tolist()
        assert streamer.ended == (len(active) == 0)
        if not len(active):
            break


READERS = {
    "no repeated pair": lambda: NoRepeatNGramLogitsProcessor(2),
    "least length": lambda: MinLengthLogitsProcessor(8, [1, 2]),
    "least new tokens": lambda: MinNewTokensLengthLogitsProcessor(PROMPT, 3, [1]),
    "repetition": lambda: RepetitionPenaltyLogitsProcessor(1.7),
    "bad words": lambda: NoBadWordsLogitsProcessor([[6], [4, 5], [5, 5]]),
}


@pytest.mark.parametrize("name", READERS)
@given(
    seed=st.integers(0, 10_000),
    lengths=st.lists(st.integers(PROMPT + 1, PROMPT + MAX_STEPS), min_size=BATCH, max_size=BATCH),
    chosen=st.sets(st.integers(0, BATCH - 1), min_size=1),
    num_words=st.integers(0, MAX_STEPS),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_processors_that_read_the_text_see_each_row_as_if_it_were_alone(name, seed, lengths, chosen, num_words):
    torch.manual_seed(seed)
    rows = make_rows([READERS[name](), TemperatureLogitsWarper(0.7)])
    grow(rows, lengths=lengths)
    chosen = torch.tensor(sorted(chosen))
    logits, tokens = torch.randn(len(chosen), VOCAB), torch.randint(1, VOCAB, (len(chosen), num_words))
    texts = rows.texts(chosen)
    processed = rows.process(chosen, tokens, logits.clone())
    for at, text in enumerate(texts):
        alone = LogitsProcessorList([READERS[name](), TemperatureLogitsWarper(0.7)])
        expected = alone(torch.cat([text, tokens[at : at + 1]], dim=1), logits[at : at + 1].clone())
        assert torch.equal(processed[at : at + 1], expected)
    assert rows.lengths.tolist() == lengths  # tokens tried out do not count


def test_processors_that_do_not_read_the_text_are_called_once_for_all_rows(monkeypatch):
    shapes, top = [], TopKLogitsWarper.__call__
    recorded = lambda self, ids, scores: shapes.append(scores.shape) or top(self, ids, scores)  # noqa: E731
    monkeypatch.setattr(TopKLogitsWarper, "__call__", recorded)
    rows = make_rows([TemperatureLogitsWarper(0.5), TopKLogitsWarper(3)])
    grow(rows, lengths=[5, 9, 6])
    logits = torch.randn(2, VOCAB)
    processed = rows.process(torch.tensor([0, 2]), torch.zeros(2, 1, dtype=torch.long), logits)
    assert shapes == [(2, VOCAB)]
    assert torch.equal(processed, top(TopKLogitsWarper(3), None, logits / 0.5))


@pytest.mark.parametrize("chosen", [[0, 1, 2], [0, 2], [2]], ids=str)
def test_a_processor_may_hold_a_value_for_each_row_of_the_batch(chosen):
    ignored = torch.tensor([0, 3, 6])
    rows = make_rows([RepetitionPenaltyLogitsProcessor(1.9, prompt_ignore_length=ignored)])
    grow(rows, lengths=[6, 8, 7])
    chosen = torch.tensor(chosen)
    logits, tokens = torch.randn(len(chosen), VOCAB), torch.randint(4, VOCAB, (len(chosen), 2))
    texts = [torch.cat([text, tokens[at : at + 1]], dim=1) for at, text in enumerate(rows.texts(chosen))]
    processed = rows.process(chosen, tokens, logits)
    for at, (row, text) in enumerate(zip(chosen.tolist(), texts, strict=True)):
        alone = RepetitionPenaltyLogitsProcessor(1.9, prompt_ignore_length=int(ignored[row]))
        assert torch.equal(processed[at : at + 1], alone(text, logits[at : at + 1]))


def test_scores_and_logits_are_kept_of_the_words_that_stay_and_are_zero_beyond():
    asked = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    rows = make_rows(criteria=[EosTokenCriteria([1])], **asked)
    scores, logits = torch.rand(2, 2, 3, BATCH, VOCAB) + 1  # of what, round, step
    tokens = torch.tensor([[4, 4, 4], [4, 1, 4], [4, 4, 4]])
    rows.append(torch.arange(BATCH), Verified(tokens, torch.tensor([3, 3, 1]), tokens, [*scores[0]], [*logits[0]]))
    active, tokens = torch.tensor([0, 2]), torch.full((2, 3), 4)
    second = [[*steps[1][:, active]] for steps in (scores, logits)]
    rows.append(active, Verified(tokens, torch.tensor([1, 2]), tokens, *second))
    for got, given_steps in ((rows.scores(), scores), (rows.logits(), logits)):
        kept = [[*given_steps[0, :3, 0], given_steps[1, 0, 0]], [*given_steps[0, :2, 1]]]
        kept.append([given_steps[0, 0, 2], *given_steps[1, :2, 2]])
        assert len(got) == 4
        for step in range(4):
            for row in range(BATCH):
                expected = kept[row][step] if step < len(kept[row]) else torch.zeros(VOCAB)
                assert torch.equal(got[step][row], expected)
