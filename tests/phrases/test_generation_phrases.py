"""Where the phrases of `generate` come from: a schedule, an index, embeddings kept; and what they cannot go with."""

import copy

import pytest
import torch
from transformers import GenerationConfig

from hf_targets.phrases.decoding.schedule import PhraseSchedule
from hf_targets.phrases.decoding.table import PhraseIndex
from tests.choices import on_clear_draws, restart_draws
from tests.phrases.models import make_phrase_model, random_vocabulary, vocabulary_of
from tests.tiny_models import VOCAB, left_padded, make_backbone, token_ids

PHRASES, OTHERS = random_vocabulary(20), random_vocabulary(7, seed=2)
GREEDY = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": None}
every_way = pytest.mark.parametrize(
    "how", [{}, {"num_beams": 3}, {"do_sample": True, "top_k": 30}], ids=["greedy", "beams", "sampled"]
)


def generate(model, ids, **how):
    restart_draws()
    return model.generate(ids, **how)


class CountedModel:
    """A model of its own, and how many phrases its encoder was asked for each time."""

    def __init__(self):
        self.model, self.asked = copy.deepcopy(make_phrase_model()), []
        forward = self.model.phrase_encoder.forward

        def counted(windows, phrase_windows):
            self.asked.append(len(phrase_windows))
            return forward(windows, phrase_windows)

        self.model.phrase_encoder.forward = counted


def two_after_four(num_tokens, num_phrases):
    return 2 if num_tokens < 4 else num_phrases


def tokens_before(vocabulary, new):
    """How many tokens stand before each step of a row."""
    return [len(vocabulary.expand(new[:step].tolist())) for step in range(len(new))]


@every_way
def test_phrases_are_not_chosen_before_they_come(how):
    model, late, steps = make_phrase_model(), [], []
    for seed in range(4):
        phrases = [PHRASES, PHRASES]  # rows with one vocabulary share its schedule
        ids = token_ids(2, 5, seed=seed)
        new = generate(model, ids, phrases=phrases, phrase_schedule=two_after_four, **{**GREEDY, **how})[:, 5:]
        for row in new:
            positions = (row >= VOCAB + 2).nonzero().flatten().tolist()
            late += [tokens_before(PHRASES, row)[position] for position in positions]
            steps += positions
    assert late
    if "num_beams" not in how:  # a beam has the phrases of the longest beam
        assert min(late) >= 4
    if not how:
        assert min(steps) < 4  # four tokens are fewer steps, with a phrase


@pytest.mark.parametrize("use_cache", [True, False])
def test_each_step_has_the_phrases_that_are_there(use_cache):
    model = make_phrase_model()
    ids, mask = left_padded()
    schedule = PhraseSchedule(0.2, 0.4, every=3)
    vocabularies = [PHRASES, OTHERS, vocabulary_of(), PHRASES]
    text = model.generate(
        ids, attention_mask=mask, phrases=vocabularies, phrase_schedule=schedule, use_cache=use_cache, **GREEDY
    )
    assert (text >= VOCAB).any()
    for step in range(12):
        counts = [
            schedule(len(vocabulary.expand(row)), vocabulary.num_ids)
            for vocabulary, row in zip(vocabularies, text[:, 7 : 7 + step].tolist(), strict=True)
        ]
        table = model.phrase_table(vocabularies, counts)
        so_far = text[:, : 7 + step]
        whole = torch.cat([mask, mask.new_ones(4, step)], dim=1)
        positions = (whole.cumsum(dim=1) - 1).clamp(min=0)
        logits = model(so_far, attention_mask=whole, position_ids=positions, phrases=table).logits
        assert torch.equal(logits[:, -1].argmax(dim=-1), text[:, 7 + step])


def test_a_schedule_that_starts_with_all_phrases_changes_nothing():
    model = make_phrase_model()
    text = model.generate(token_ids(2, 5), phrases=PHRASES, phrase_schedule=PhraseSchedule(1.0), **GREEDY)
    assert torch.equal(text, model.generate(token_ids(2, 5), phrases=PHRASES, **GREEDY))


def test_phrases_to_come_are_embedded_when_they_come():
    counted = CountedModel()
    how = {"phrases": PHRASES, "phrase_schedule": PhraseSchedule(0.5, 0.25, every=3), **GREEDY}
    counted.model.generate(token_ids(1, 5), **how, stopping_criteria=[lambda ids, scores: ids[:, -1] < 0])
    assert sum(counted.asked) == 20
    early = CountedModel()
    early.model.generate(token_ids(1, 5), **{**how, "max_new_tokens": 1})
    assert sum(early.asked) == 10
    early.model.generate(token_ids(1, 5), **{**how, "max_new_tokens": 4})
    assert sum(early.asked) in (15, 20)  # after three steps, three tokens or more


def test_phrases_are_embedded_once_for_all_calls():
    counted = CountedModel()
    first = counted.model.generate(token_ids(1, 5), phrases=PHRASES, **GREEDY)
    assert sum(counted.asked) == 20
    grown = random_vocabulary(25)  # begins as the other does
    for phrases in (PHRASES, [PHRASES], random_vocabulary(20), grown, OTHERS, grown):
        counted.model.generate(token_ids(1, 5), phrases=phrases, **GREEDY)
    assert sum(counted.asked) == 25 + 7
    assert torch.equal(first, counted.model.generate(token_ids(1, 5), phrases=PHRASES, **GREEDY))


def index_of(model, phrases, factory="Flat"):
    pytest.importorskip("faiss")
    rows, _ = model.phrase_table(phrases).rows_of_batch(1, 1)
    return PhraseIndex.build(rows.detach(), factory)


@every_way
@pytest.mark.usefixtures("clear_choices")  # an index gives its scores in float32
@on_clear_draws
def test_an_index_that_finds_all_phrases_is_the_table(how):
    model = make_phrase_model()
    ids, mask = left_padded()
    how = {**GREEDY, **how, "attention_mask": mask, "phrases": PHRASES}
    found = generate(model, ids, phrase_index=index_of(model, PHRASES), num_neighbours=20, **how)
    assert torch.equal(found, generate(model, ids, **how))


@pytest.mark.parametrize("factory", ["Flat", "IVF2,Flat", "PQ4x2"])
@pytest.mark.usefixtures("clear_choices")
def test_an_index_leaves_so_many_phrases_to_each_step(factory):
    model = make_phrase_model()
    how = {**GREEDY, "return_dict_in_generate": True, "output_scores": True, "phrases": PHRASES}
    output = model.generate(token_ids(2, 5), phrase_index=index_of(model, PHRASES, factory), num_neighbours=3, **how)
    for scores in output.scores:
        assert scores.shape == (2, VOCAB + 20)
        assert (scores[:, VOCAB:].isfinite().sum(dim=1) == 3).all()
    if factory == "Flat":  # the best phrase is always found
        assert torch.equal(output.sequences, model.generate(token_ids(2, 5), **how).sequences)


def test_an_index_must_be_of_the_one_vocabulary():
    model = make_phrase_model()
    index = index_of(model, PHRASES)
    for phrases, message in (([PHRASES, OTHERS], "one vocabulary"), (OTHERS, "got 20")):
        with pytest.raises(ValueError, match=message):
            model.generate(token_ids(2, 5), phrases=phrases, phrase_index=index, **GREEDY)
    with pytest.raises(ValueError, match="step by step"):
        model.generate(token_ids(2, 5), phrases=PHRASES, phrase_index=index, phrase_schedule=PhraseSchedule(), **GREEDY)


def test_a_schedule_needs_phrases():
    with pytest.raises(ValueError, match="need phrases"):
        make_phrase_model().generate(token_ids(1, 5), phrase_schedule=PhraseSchedule(), **GREEDY)


@pytest.mark.parametrize(
    ("phrases", "message"), [([PHRASES] * 3, "got 3 for a batch of 2"), ([], "got none"), (["the cat"], "got str")]
)
@pytest.mark.parametrize("schedule", [None, PhraseSchedule()], ids=["all", "scheduled"])
def test_phrases_are_one_vocabulary_or_one_for_each_row(phrases, message, schedule):
    with pytest.raises(ValueError, match=message):
        make_phrase_model().generate(token_ids(2, 5), phrases=phrases, phrase_schedule=schedule, **GREEDY)


def not_with_phrases():
    return [
        {"prompt_lookup_num_tokens": 2},
        {"assistant_model": make_backbone("llama", seed=1)},
        {"guidance_scale": 1.5},
        {"watermarking_config": {"bias": 2.5, "seeding_scheme": "selfhash"}},
    ]


@pytest.mark.parametrize("number", range(4), ids=["prompt lookup", "assistant", "guidance", "watermark"])
def test_what_is_made_for_tokens_alone_is_refused_with_phrases_and_as_it_was_without(number):
    model, how = make_phrase_model(), not_with_phrases()[number]
    prompt = token_ids(1, 5).repeat(1, 2)
    with pytest.raises(ValueError, match=r"(draft|supports) only tokens"):
        model.generate(prompt, phrases=PHRASES, **how, **GREEDY)
    expected = model.backbone.generate(prompt, **not_with_phrases()[number], **GREEDY)
    assert torch.equal(model.generate(prompt, **how, **GREEDY), expected)


def test_continuous_batching_is_refused():
    with pytest.raises(ValueError, match="continuous batching supports only tokens; leave out cache_implementation"):
        make_phrase_model().generate(token_ids(1, 5), phrases=PHRASES, cache_implementation="paged", **GREEDY)


def test_a_model_is_not_changed_by_the_phrases_of_a_call():
    counted = CountedModel()
    model, prompt = counted.model, token_ids(2, 5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = model.generation_config.to_dict()
    plain = model.generate(prompt, generation_config=GenerationConfig(**GREEDY))
    model.generate(prompt, phrases=[PHRASES, OTHERS], max_new_static_tokens=9, **GREEDY)
    assert torch.equal(plain, model.generate(prompt, **GREEDY))
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert model.generation_config.to_dict() == config
