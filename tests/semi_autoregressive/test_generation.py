"""Texts written word by word and in blocks, against a loop over whole texts without a cache."""

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from tests.choices import on_clear_draws, restart_draws
from tests.semi_autoregressive.models import KINDS, make_block_model
from tests.tiny_backbones import VOCAB, left_padded, token_ids

kinds = pytest.mark.parametrize("kind", KINDS)
counts = pytest.mark.parametrize("count", [1, 2, 3])
NO_END = {"do_sample": False, "eos_token_id": None}


def written_by_hand(model, ids, num_tokens, count):
    """Return one row of text with the best words of blocks, each read from the whole text before it."""
    end = ids.shape[1] + num_tokens
    while ids.shape[1] < end:
        block = model(ids, output_block_logits=True).block_logits[:, -1, :count].argmax(dim=-1)
        ids = torch.cat([ids, block], dim=1)
    return ids[:, :end]


@kinds
@counts
@pytest.mark.usefixtures("clear_choices")
def test_greedy_blocks_are_the_best_words_of_each_pass(kind, count):
    model, ids = make_block_model(kind, "llama").double(), token_ids(2, 5)
    expected = torch.cat([written_by_hand(model, row[None], 7, count) for row in ids])
    for use_cache in (True, False):
        settings = {"max_new_tokens": 7, "use_cache": use_cache, "tokens_per_step": count, **NO_END}
        assert torch.equal(model.generate(ids, **settings), expected)
    drawn = model.generate(ids, max_new_tokens=7, tokens_per_step=count, **{**NO_END, "do_sample": True, "top_k": 1})
    assert torch.equal(drawn, expected)


@counts
def test_a_pass_writes_so_many_words(count):
    model, passes = make_block_model().double(), []
    model.base_model.register_forward_hook(lambda *_: passes.append(1))
    model.generate(token_ids(1, 5), max_new_tokens=7, tokens_per_step=count, **NO_END)
    assert len(passes) == -(-7 // count)


def test_the_generation_configuration_tells_how_many_words_a_pass_writes(tmp_path):
    model, ids, how = make_block_model().double(), token_ids(1, 5), {"max_new_tokens": 7, **NO_END}
    expected = {count: model.generate(ids, tokens_per_step=count, **how) for count in (1, 3)}
    assert not torch.equal(expected[1], expected[3])
    assert torch.equal(model.generate(ids, GenerationConfig(tokens_per_step=3, **how)), expected[3])
    model.generation_config.tokens_per_step = 3
    assert torch.equal(model.generate(ids, **how), expected[3])
    assert torch.equal(model.generate(ids, GenerationConfig(top_k=7), **how), expected[3])
    assert torch.equal(model.generate(ids, tokens_per_step=1, **how), expected[1])
    model.save_pretrained(tmp_path)
    assert type(model).from_pretrained(tmp_path).generation_config.tokens_per_step == 3
    model.generation_config.tokens_per_step = 9
    with pytest.raises(ValueError, match="got 9"):
        model.generate(ids, **how)


@counts
@pytest.mark.usefixtures("clear_choices")
def test_a_padded_prompt_is_continued_as_alone(count):
    model = make_block_model("curve", "llama").double()
    ids, mask = left_padded()
    settings = {"max_new_tokens": 5, "tokens_per_step": count, **NO_END}
    together = model.generate(ids, attention_mask=mask, **settings)
    for row, kept, text in zip(ids, mask.bool(), together, strict=True):
        assert torch.equal(model.generate(row[kept][None], **settings)[0, -5:], text[-5:])


@counts
@on_clear_draws
@pytest.mark.usefixtures("clear_choices")
def test_what_is_sampled_does_not_depend_on_the_cache(count):
    model, ids = make_block_model("curves").double(), token_ids(3, 5)
    settings = {"max_new_tokens": 6, "tokens_per_step": count, "do_sample": True, "eos_token_id": None, "top_k": 9}
    one = model.generate(ids, use_cache=True, **settings)
    restart_draws()
    assert torch.equal(model.generate(ids, use_cache=False, **settings), one)


@pytest.mark.usefixtures("clear_choices")
def test_a_text_ends_inside_a_block_and_the_others_go_on():
    model, ids = make_block_model().double(), token_ids(4, 5)
    free = model.generate(ids, max_new_tokens=9, tokens_per_step=3, **NO_END)
    row = next(row for row in range(4) if free[row, 6] != free[row, 5])
    end = int(free[row, 6])  # the second word of its first block
    texts = model.generate(ids, max_new_tokens=9, tokens_per_step=3, do_sample=False, eos_token_id=end, pad_token_id=0)
    assert texts[row, 6] == end and not texts[row, 7:].any()
    for text, whole in zip(texts, free, strict=True):
        places = (whole[5:] == end).nonzero()
        length = 5 + int(places[0]) + 1 if len(places) else 14
        length = min(length, len(text))
        assert torch.equal(text[:length], whole[:length]) and not text[length:].any()


class _Lengths(LogitsProcessor):
    """Notes the texts that it is shown, and forbids the best word."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores):
        self.seen.append(input_ids.shape[1])
        return scores.masked_fill(scores == scores.max(dim=-1, keepdim=True).values, -float("inf"))


def test_processors_and_streamers_see_each_word_and_scores_are_kept():
    class Streamer:
        def __init__(self):
            self.put_values, self.ended = [], False

        def put(self, value):
            self.put_values.append(value)

        def end(self):
            self.ended = True

    model, ids, streamer, lengths = make_block_model("curve").double(), token_ids(1, 5), Streamer(), _Lengths()
    found = model.generate(
        ids,
        max_new_tokens=7,
        tokens_per_step=3,
        streamer=streamer,
        logits_processor=LogitsProcessorList([lengths]),
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        **NO_END,
    )
    assert lengths.seen == list(range(5, 12)) and streamer.ended
    assert torch.equal(torch.cat([value.flatten() for value in streamer.put_values]), found.sequences[0])
    assert len(found.scores) == len(found.logits) == 7
    for score, logits, token in zip(found.scores, found.logits, found.sequences[0, 5:], strict=True):
        assert token == score.argmax() == logits.topk(2).indices[0, 1]
    assert found.past_key_values is not None


@pytest.mark.parametrize("asked", [(), ("output_scores",), ("output_logits",)], ids=str)
def test_scores_and_logits_are_kept_where_they_are_asked_for(asked):
    flags = {name: True for name in ("return_dict_in_generate", *asked)}
    found = make_block_model("curve").generate(token_ids(1, 5), max_new_tokens=7, tokens_per_step=3, **flags, **NO_END)
    for name in ("scores", "logits"):
        kept = getattr(found, name)
        assert (kept is None) == (f"output_{name}" not in asked)
        assert kept is None or [one.untyped_storage().nbytes() for one in kept] == [4 * one.numel() for one in kept]


def test_a_stopping_criterion_ends_a_text_inside_a_block():
    model, ids, seen = make_block_model().double(), token_ids(1, 5), []

    def two_words(input_ids, _scores, **_):
        seen.append(input_ids.shape[1])
        return torch.full((len(input_ids),), input_ids.shape[1] >= 7)

    text = model.generate(ids, max_new_tokens=9, tokens_per_step=3, stopping_criteria=[two_words], **NO_END)
    assert text.shape[1] == 7 and seen == [6, 7]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"tokens_per_step": 0}, "tokens_per_step"),
        ({"tokens_per_step": 4}, "tokens_per_step"),
        ({"tokens_per_step": 2, "num_beams": 2}, "num_beams"),
        ({"tokens_per_step": 2, "generation_config": GenerationConfig(prompt_lookup_num_tokens=2)}, "drafts"),
        ({"tokens_per_step": 2, "return_dict_in_generate": True, "output_hidden_states": True}, "hidden_states"),
    ],
    ids=str,
)
def test_settings_that_do_not_go_together_are_refused(arguments, told):
    with pytest.raises(ValueError, match=told):
        make_block_model().generate(token_ids(1, 5), max_new_tokens=4, **arguments)


@pytest.mark.usefixtures("clear_choices")
def test_as_many_beams_as_words_find_the_best_two_words():
    model, ids = make_block_model("curve").double(), token_ids(2, 5)
    found = model.generate(ids, max_new_tokens=2, num_beams=VOCAB, **NO_END)
    for row, text in zip(ids, found, strict=True):
        first = model(row[None]).logits[0, -1].log_softmax(-1)
        both = torch.stack([torch.cat([row, torch.tensor([word])]) for word in range(VOCAB)])
        second = model(both).logits[:, -1].log_softmax(-1)
        best = (first[:, None] + second).flatten().argmax()
        assert text[5:].tolist() == [int(best) // VOCAB, int(best) % VOCAB]


@counts
@pytest.mark.usefixtures("clear_choices")
def test_a_backbone_without_a_cache_reads_the_whole_text_in_each_pass(count, capfd):
    model, ids = make_block_model("words", "reformer").double(), token_ids(1, 6)
    found = model.generate(ids, max_new_tokens=7, tokens_per_step=count, **NO_END)
    assert torch.equal(found, written_by_hand(model, ids, 7, count))
    assert "not a recognized input" not in "".join(capfd.readouterr())


@counts
@pytest.mark.usefixtures("clear_choices")
def test_all_words_of_a_block_are_in_the_last_segment(count):
    model = make_block_model().double()
    for segments in ([[0, 0, 1, 0, 1]], [[1]]):
        kept, ids = torch.tensor(segments), token_ids(1, len(segments[0]))
        found = model.generate(ids, token_type_ids=kept, max_new_tokens=6, tokens_per_step=count, **NO_END)
        while ids.shape[1] < found.shape[1]:
            block = model(ids, token_type_ids=kept, output_block_logits=True).block_logits[:, -1, :count].argmax(-1)
            ids, kept = torch.cat([ids, block], 1), torch.cat([kept, kept[:, -1:].expand(-1, count)], 1)
        assert torch.equal(found, ids[:, : found.shape[1]])
