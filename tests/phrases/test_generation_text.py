"""What reads the text while it is generated reads phrases as their tokens; and where the text ends."""

import pytest
import torch
from transformers import LogitsProcessor, StoppingCriteria, TextIteratorStreamer, pipeline

from tests.phrases.models import OTHERS, PHRASES, RAGGED, WORDS, make_phrase_model, vocabulary_of
from tests.tiny_models import VOCAB, left_padded, make_dynamic_model, token_ids

GREEDY = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": None}
PADDED = {"do_sample": False, "eos_token_id": 49, "pad_token_id": 48}


class Favour(LogitsProcessor):
    """Makes a model write given ids, one step after another."""

    def __init__(self, *ids):
        self.ids, self.step = ids, 0

    def __call__(self, input_ids, scores):
        scores = scores.index_fill(1, torch.tensor([self.ids[self.step % len(self.ids)]]), 1e4)
        self.step += 1
        return scores


def write(*ids, phrases=PHRASES, **how):
    """Return the new ids of a text whose next steps are `ids`, if nothing ends it."""
    how = {**PADDED, "max_new_tokens": len(ids), "logits_processor": [Favour(*ids)], **how}
    text = make_phrase_model().generate(token_ids(1, 4), phrases=phrases, **how)
    return text[0, 4:].tolist()


@pytest.mark.parametrize(
    "how",
    [
        {"repetition_penalty": 1.4},
        {"no_repeat_ngram_size": 2, "num_beams": 3},
        {"bad_words_ids": [[5], [9, 7]], "suppress_tokens": [6, 8]},
        {"begin_suppress_tokens": list(range(1, 25)), "num_beams": 3},
    ],
    ids=lambda how: next(iter(how)),
)
def test_processors_of_words_do_to_a_row_of_a_batch_what_they_do_to_it_alone(how):
    model = make_phrase_model()
    ids, mask = left_padded()
    ids = ids + (1 - mask) * 49  # padding is no word of the prompts
    how = {**GREEDY, **how}
    together = model.generate(ids, attention_mask=mask, phrases=RAGGED, **how)
    for row, vocabulary in enumerate(RAGGED):
        start = int((mask[row] == 0).sum())
        alone = model.generate(ids[row : row + 1, start:], phrases=vocabulary, **how)
        assert torch.equal(together[row, start:], alone[0])


class Recorder(LogitsProcessor, StoppingCriteria):
    def __init__(self):
        self.texts = []

    def __call__(self, input_ids, scores, **kwargs):
        self.texts.append(input_ids[0].tolist())
        return torch.zeros(len(input_ids), dtype=torch.bool) if isinstance(scores, tuple | None) else scores


def test_own_processors_and_criteria_see_expanded_texts():
    processor, criterion = Recorder(), Recorder()
    model = make_phrase_model()
    text = model.generate(
        token_ids(1, 4), phrases=PHRASES, logits_processor=[processor], stopping_criteria=[criterion], **GREEDY
    )[0]
    assert (text >= VOCAB).any()
    assert processor.texts == [PHRASES.expand(text[:length]) for length in range(4, 16)]
    assert criterion.texts == [PHRASES.expand(text[:length]) for length in range(5, 17)]


STOPPED = vocabulary_of([1, 2, 3, 4], [3, 4], [5, 6])


@pytest.mark.parametrize(
    ("string", "steps"),
    [
        ("w02 w03", 2),  # inside a phrase
        ("w04 w05 w06 w07", 4),  # two phrases and a token
        ("w09 abcdef", 2),
        ("w07 w05", 5),
        ("w05 w07", 6),  # never
    ],
)
def test_stop_strings_in_phrases_and_across(string, steps):
    ids = [9, VOCAB, VOCAB + 2, 7, VOCAB + 2, 8]
    new = write(*ids, phrases=STOPPED, stop_strings=[string], tokenizer=WORDS)
    assert new == ids[:steps]
    assert (string in STOPPED.decode(new)) == (steps < 6)


def test_a_row_that_met_its_stop_string_is_padded_while_others_go_on():
    model = make_phrase_model()
    ids, mask = left_padded()
    free = model.generate(ids, attention_mask=mask, phrases=RAGGED, max_new_tokens=10, **PADDED)
    phrase = next(id_ for id_ in free[0].tolist() if id_ >= VOCAB)
    string = PHRASES.text(phrase).strip()
    how = {**PADDED, "max_new_tokens": 10, "stop_strings": [string], "tokenizer": WORDS}
    text = model.generate(ids, attention_mask=mask, phrases=RAGGED, **how)
    end = free[0].tolist().index(phrase) + 1
    assert torch.equal(text[0, :end], free[0, :end]) and (text[0, end:] == 48).all()
    assert torch.equal(text[1], free[1])


@pytest.mark.parametrize(("limit", "how"), [(1, {}), (6, {"num_beams": 3}), (17, {}), (17, {"eos_token_id": None})])
def test_a_limit_on_tokens_ends_each_row_where_it_would_alone(limit, how):
    model = make_phrase_model()
    ids, mask = left_padded()
    how = {**PADDED, **how, "max_new_static_tokens": limit}
    together = model.generate(ids, attention_mask=mask, phrases=RAGGED, **how)
    for row, vocabulary in enumerate(RAGGED):
        start = int((mask[row] == 0).sum())
        alone = model.generate(ids[row : row + 1, start:], phrases=vocabulary, **how)[0]
        assert torch.equal(together[row, start : len(alone) + start], alone)
        assert (together[row, len(alone) + start :] == 48).all()
        new = alone[7 - start :]
        assert len(vocabulary.expand(new)) >= limit > len(vocabulary.expand(new[:-1]))


def test_a_limit_on_steps_and_one_on_tokens_hold_both():
    ids = [VOCAB + 3, 5, VOCAB + 3, 6, 7]  # 5, 1, 5, 1, 1 tokens
    assert len(PHRASES.token_ids(VOCAB + 3)) == 5
    for steps, tokens, expected in ((3, 100, 3), (5, 6, 2), (5, 5, 1), (5, 12, 4), (5, 11, 3), (2, 6, 2)):
        assert len(write(*ids, max_new_tokens=steps, max_new_static_tokens=tokens)) == expected


@pytest.mark.parametrize("how", [{}, {"do_sample": True}, {"max_new_static_tokens": 9}], ids=str)
def test_a_phrase_streams_as_its_words(how):
    torch.manual_seed(0)
    streamer = TextIteratorStreamer(WORDS, skip_prompt=True, timeout=5)
    text = make_phrase_model().generate(
        token_ids(1, 4), phrases=PHRASES, streamer=streamer, **{**PADDED, "max_new_tokens": 12, **how}
    )[0, 4:]
    assert (text >= VOCAB).any()
    assert "".join(streamer) == PHRASES.decode(text)


PLAIN = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}  # GPT-2, GPT-Neo and OPT here: 64 positions


@pytest.mark.parametrize(("family", "phrases"), [("gpt2", PHRASES), ("opt", PHRASES), ("gpt_neo", None)])
def test_a_text_may_fill_all_positions_and_its_last_step_takes_none(family, phrases):
    model, prompt = make_phrase_model(family), token_ids(1, 60)
    for limit in ({"max_new_tokens": 5}, {"max_length": 65}, {"max_new_static_tokens": 30, "max_new_tokens": 5}):
        assert model.generate(prompt, phrases=phrases, **limit, **PLAIN).shape[1] <= 65
    limit = {"max_length": 65, "max_new_static_tokens": 30}
    assert model.generate(prompt, phrases=phrases, **limit, **PLAIN).shape[1] <= 65
    for limit in ({"max_new_tokens": 6}, {"max_length": 66}, {"max_new_static_tokens": 6}):
        with pytest.raises(ValueError, match=f"64 positions.*lower {next(iter(limit))}"):
            model.generate(prompt, phrases=phrases, **limit, **PLAIN)


@pytest.mark.parametrize("family", ["llama", "phi"])
def test_a_backbone_that_computes_its_positions_goes_on_beyond_the_length_it_was_trained_on(family):
    model = make_dynamic_model(family)
    model.config.get_text_config().max_position_embeddings = 16
    assert model.generate(token_ids(1, 10), phrases=PHRASES, max_new_tokens=20, **PLAIN).shape == (1, 30)


def test_a_text_that_may_end_earlier_is_refused_when_it_has_outgrown_the_positions():
    model, limits = make_phrase_model("gpt2"), {"max_new_tokens": 90, "phrases": PHRASES, **PLAIN}
    stop = [lambda ids, scores, **_: torch.tensor([ids.shape[1] >= 14])]
    assert model.generate(token_ids(1, 10), **limits, stopping_criteria=stop).shape == (1, 14)
    with pytest.raises(ValueError, match="did not end"):
        model.generate(token_ids(1, 10), **limits, stopping_criteria=[lambda ids, scores, **_: torch.tensor([False])])


@pytest.mark.parametrize("phrases", [PHRASES, [PHRASES, OTHERS]], ids=["shared", "one a row"])
def test_a_pipeline_writes_the_phrases_out(phrases):
    model, prompts = make_phrase_model(), ["w02 w03 w04", "w05"]
    how = {"num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 8, "eos_token_id": None, "do_sample": False}
    run = pipeline("text-generation", model=model, tokenizer=WORDS, batch_size=2, return_full_text=False)
    texts = [text["generated_text"] for texts in run(prompts, phrases=phrases, **how) for text in texts]
    batch = WORDS(prompts, return_tensors="pt", padding=True, padding_side="left")
    new = model.generate(**batch, phrases=phrases, **how)[:, 3:]
    of_rows = [PHRASES] * 4 if phrases is PHRASES else [PHRASES, PHRASES, OTHERS, OTHERS]
    assert (new >= VOCAB).any()
    assert texts == [one.decode(row, skip_special_tokens=True) for one, row in zip(of_rows, new, strict=True)]
