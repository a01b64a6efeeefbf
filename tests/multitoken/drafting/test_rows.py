import pytest
import torch
from transformers import GenerationConfig, StoppingCriteriaList, WhisperConfig, WhisperForConditionalGeneration
from transformers.generation.logits_process import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from hf_targets import draft
from hf_targets.multitoken.drafting.rows import Rows
from hf_targets.multitoken.drafting.verification import Verified
from tests.multitoken.test_draft import WHISPER, inputs_of
from tests.tiny_models import takes_lengths

VOCAB, BATCH, PROMPT, MAX_LENGTH, PAD = 8, 3, 4, 14, 7


def prompts(seed=0):
    return torch.randint(4, VOCAB, (BATCH, PROMPT), generator=torch.Generator().manual_seed(seed))


def make_rows(processors=(), criteria=(), **config):
    config = GenerationConfig(max_length=MAX_LENGTH, **config)
    config._pad_token_tensor = torch.tensor(PAD)
    stops = StoppingCriteriaList([*criteria, MaxLengthCriteria(MAX_LENGTH)])
    return Rows(prompts(), LogitsProcessorList(processors), stops, config, streamer=None)


def found(tokens, counts, vocab=VOCAB):
    steps = [torch.zeros(len(tokens), vocab)] * tokens.shape[1]
    return Verified(tokens, counts, torch.zeros_like(tokens), torch.zeros_like(counts), steps, steps)


def grow(rows, *, lengths):
    """Append random tokens, so that rows have these lengths."""
    more = torch.tensor(lengths) - PROMPT
    rows.append(found(torch.randint(4, VOCAB, (BATCH, int(more.max()))), more))


def test_processors_that_do_not_read_the_text_are_called_once_for_all_rows(monkeypatch):
    shapes, top = [], TopKLogitsWarper.__call__
    recorded = lambda self, ids, scores: shapes.append(scores.shape) or top(self, ids, scores)  # noqa: E731
    monkeypatch.setattr(TopKLogitsWarper, "__call__", recorded)
    rows = make_rows([TemperatureLogitsWarper(0.5), TopKLogitsWarper(3)])
    grow(rows, lengths=[5, 9, 6])
    rows.drop([True, False, True])
    logits = torch.randn(2, VOCAB)
    processed = rows.process(torch.zeros(2, 1, dtype=torch.long), logits)
    assert shapes == [(2, VOCAB)]
    assert torch.equal(processed, top(TopKLogitsWarper(3), None, logits / 0.5))


@pytest.mark.skipif(not takes_lengths(), reason="Transformers before 5.23 takes one length for all rows")
@pytest.mark.parametrize("chosen", [[0, 1, 2], [0, 2], [2]], ids=str)
def test_a_processor_may_hold_a_value_for_each_row_of_the_batch(chosen):
    ignored = torch.tensor([0, 3, 6])
    rows = make_rows([RepetitionPenaltyLogitsProcessor(1.9, prompt_ignore_length=ignored)])
    grow(rows, lengths=[6, 8, 7])
    rows.drop([row in chosen for row in range(BATCH)])
    logits, tokens = torch.randn(len(chosen), VOCAB), torch.randint(4, VOCAB, (len(chosen), 2))
    known = [rows.ids[row, : rows.lengths[row]][None] for row in chosen]
    texts = [torch.cat([text, tokens[at : at + 1]], dim=1) for at, text in enumerate(known)]
    processed = rows.process(tokens, logits)
    for at, (row, text) in enumerate(zip(chosen, texts, strict=True)):
        alone = RepetitionPenaltyLogitsProcessor(1.9, prompt_ignore_length=int(ignored[row]))
        assert torch.equal(processed[at : at + 1], alone(text, logits[at : at + 1]))


def test_scores_and_logits_are_kept_of_the_words_that_stay_and_are_zero_beyond():
    asked = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    rows = make_rows(criteria=[EosTokenCriteria([1])], **asked)
    scores, logits = torch.rand(2, 2, 3, BATCH, VOCAB) + 1  # of what, round, step
    tokens = torch.tensor([[4, 4, 4], [4, 1, 4], [4, 4, 4]])
    drafted = torch.tensor([2, 1, 0])
    counts, new = rows.append(Verified(tokens, torch.tensor([3, 3, 1]), tokens, drafted, [*scores[0]], [*logits[0]]))
    assert counts.tolist() == [3, 2, 1]
    assert new == [([4, 4, 4], False, 2), ([4, 1], True, 1), ([4], False, 0)]
    rows.drop([not row.ended for row in new])
    second = [[*steps[1][:, [0, 2]]] for steps in (scores, logits)]
    rows.append(Verified(torch.full((2, 3), 4), torch.tensor([1, 2]), tokens, drafted[:2], *second))
    assert rows.known_lengths == rows.lengths.tolist() == [PROMPT + count for count in (4, 2, 3)]
    for got, given_steps in ((rows.scores(), scores), (rows.logits(), logits)):
        kept = [[*given_steps[0, :3, 0], given_steps[1, 0, 0]], [*given_steps[0, :2, 1]]]
        kept.append([given_steps[0, 0, 2], *given_steps[1, :2, 2]])
        assert len(got) == 4
        for step in range(4):
            for row in range(BATCH):
                expected = kept[row][step] if step < len(kept[row]) else torch.zeros(VOCAB)
                assert torch.equal(got[step][row], expected)


def test_rows_of_speech_end_within_the_positions_of_their_decoder():
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(WhisperConfig(**WHISPER | {"max_target_positions": 24})).eval()
    inputs, told = inputs_of(model, 4), {"max_new_tokens": 23, "eos_token_id": None}
    plain, drafts = model.generate(**inputs, **told), draft(lookup=False, answers=True, num_tokens=6)
    drafts.others["answers"].extend([token for row in plain[:1].tolist() for token in [*row, -1]])
    assert torch.equal(model.generate(**inputs, custom_generate=drafts, **told), plain)
