"""Where the phrases of `generate` come from: a schedule, an index, embeddings kept; and what they cannot go with."""

import copy

import pytest
import torch
from transformers import GenerationConfig

from hf_targets import DynamicVocabForCausalLM, PhraseFeed, PhraseVocabulary, VectorIndex, train_bpe_tokenizer
from hf_targets.phrases.decoding.schedule import PhraseSchedule
from tests.choices import on_clear_draws
from tests.phrases.models import OTHERS, PHRASES, generate, make_phrase_model, vocabulary_of
from tests.retrieval.vector_engines import ENGINES, MODULES
from tests.tiny_models import VOCAB, left_padded, make_backbone, token_ids
from tests.trainer_runs import assert_same

GREEDY = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": None}
every_way = pytest.mark.parametrize(
    "how", [{}, {"num_beams": 3}, {"do_sample": True, "top_k": 30}], ids=["greedy", "beams", "sampled"]
)


def two_after_four(num_tokens, num_phrases):
    return 2 if num_tokens < 4 else num_phrases


@every_way
def test_phrases_are_not_chosen_before_they_come(how):
    model, late, steps = make_phrase_model(), [], []
    for seed in range(4):
        phrases = [PHRASES, PHRASES]  # rows with one vocabulary share its schedule
        ids = token_ids(2, 5, seed=seed)
        new = generate(model, ids, phrases=phrases, phrase_schedule=two_after_four, **{**GREEDY, **how})[:, 5:]
        for row in new:
            positions = (row >= VOCAB + 2).nonzero().flatten().tolist()
            late += [len(PHRASES.expand(row[:position].tolist())) for position in positions]
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
    ids[0, 3], ids[3, 5] = VOCAB + 15, VOCAB + 1  # all phrases up to one of the prompt are there
    schedule = PhraseSchedule(0.2, 0.4, every=3)
    vocabularies = [PHRASES, OTHERS, vocabulary_of(), PHRASES]
    text = model.generate(
        ids, attention_mask=mask, phrases=vocabularies, phrase_schedule=schedule, use_cache=use_cache, **GREEDY
    )
    assert (text >= VOCAB).any()
    for step in range(12):
        counts = [
            max(schedule(len(vocabulary.expand(row)), vocabulary.num_ids), least)
            for vocabulary, row, least in zip(vocabularies, text[:, 7 : 7 + step].tolist(), (16, 0, 0, 2), strict=True)
        ]
        table = model.phrase_table(vocabularies, counts)
        so_far = text[:, : 7 + step]
        whole = torch.cat([mask, mask.new_ones(4, step)], dim=1)
        positions = (whole.cumsum(dim=1) - 1).clamp(min=0)
        logits = model(so_far, attention_mask=whole, position_ids=positions, phrases=table).logits
        assert torch.equal(logits[:, -1].argmax(dim=-1), text[:, 7 + step])


def test_a_feed_has_all_phrases_up_to_the_last_one_of_the_prompt():
    model, prompt = make_phrase_model(), torch.tensor([[3, VOCAB + 2], [VOCAB + 9, 5]])
    how = {**GREEDY, "max_new_tokens": 1}
    fed = model.generate(prompt, phrases=PhraseFeed(PHRASES, max_per_step=1), **how)
    assert torch.equal(fed, model.generate(prompt, phrases=model.phrase_table(PHRASES, [10]), **how))


def index_of(model, phrases, factory="Flat"):
    pytest.importorskip("faiss")
    rows, _ = model.phrase_table(phrases).rows_of_batch(1, 1)
    return VectorIndex.build(rows.detach(), factory)


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
    if factory == "Flat":  # the best phrases are always found, and scored as without an index
        full = model.generate(token_ids(2, 5), **how)
        assert torch.equal(output.sequences, full.sequences)
        for scores, all_scores in zip(output.scores, full.scores, strict=True):
            best, where = all_scores[:, VOCAB:].topk(3)
            expected = torch.full_like(all_scores[:, VOCAB:], -torch.inf).scatter(1, where, best)
            torch.testing.assert_close(scores[:, VOCAB:], expected, rtol=1e-4, atol=1e-4)


def test_phrases_to_come_are_embedded_when_they_come(encoded):
    model, prompt = copy.deepcopy(make_phrase_model()), token_ids(1, 5)
    how = {"phrases": PHRASES, "phrase_schedule": PhraseSchedule(0.5, 0.25, every=3), **GREEDY}
    model.generate(prompt, **{**how, "max_new_tokens": 1})
    assert sum(encoded) == 10
    model.generate(prompt, **{**how, "max_new_tokens": 4})
    assert sum(encoded) in (15, 20)  # after three steps, three tokens or more
    model.generate(prompt, **how)
    assert sum(encoded) == 20


class TwoAndOne(list):
    """An index over four phrases that finds two of them for one position, and one beside a removed one for the next."""

    metric = "inner_product"

    def search(self, queries, k):
        return None, torch.tensor([[2, 0, -1], [1, 3, -1]])


def test_places_that_an_index_leaves_open_and_removed_phrases_that_it_finds_change_nothing():
    vocabulary, none = vocabulary_of([1, 2], [3, 4], [5, 6], [7, 8]), -torch.inf
    vocabulary.remove([VOCAB + 3])
    table = make_phrase_model().phrase_table(vocabulary)
    hidden = torch.randn(1, 2, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    [[a, _, c, _], [_, b, _, _]] = table.logits(hidden)[0].tolist()
    found = table.searched(TwoAndOne(range(4)), 3).logits(hidden)
    torch.testing.assert_close(found.float(), torch.tensor([[[a, none, c, none], [none, b, none, none]]]))


@pytest.mark.parametrize(
    ("phrases", "how", "says"),
    [
        ([PHRASES] * 3, {}, "got 3 for a batch of 2"),
        ([PHRASES] * 4, {"num_beams": 2}, "got 4 for a batch of 2"),
        ([], {"phrase_schedule": PhraseSchedule()}, "got none"),
        (["the cat"], {}, "got str"),
        (None, {"phrase_schedule": PhraseSchedule()}, "need phrases"),
        (PHRASES, {"phrase_schedule": lambda num_tokens, num_phrases: 21}, "got 21"),
        (PHRASES, {"max_new_static_tokens": 0}, "got 0"),
        (PHRASES, {"cache_implementation": "paged"}, "supports only tokens"),
        (PHRASES, {"phrase_index": [0] * 20, "phrase_schedule": PhraseSchedule()}, "step by step"),
        (PhraseFeed(PHRASES), {"phrase_schedule": PhraseSchedule()}, "PhraseFeed"),
        ([PHRASES, OTHERS], {"phrase_index": [0] * 20}, "one vocabulary"),
    ],
)
def test_phrases_that_do_not_fit_the_call_are_refused(phrases, how, says):
    with pytest.raises(ValueError, match=says):
        make_phrase_model().generate(token_ids(2, 5), phrases=phrases, **how, **GREEDY)


@pytest.mark.parametrize("name", ["prompt lookup", "assistant", "guidance", "watermark"])
def test_what_is_made_for_tokens_alone_is_refused_with_phrases_and_as_it_was_without(name):
    model, prompt = make_phrase_model(), token_ids(1, 5).repeat(1, 2)
    how = {
        "prompt lookup": {"prompt_lookup_num_tokens": 2},
        "assistant": {"assistant_model": make_backbone("llama", seed=1)},
        "guidance": {"guidance_scale": 1.5},
        "watermark": {"watermarking_config": {"bias": 2.5, "seeding_scheme": "selfhash"}},
    }[name]
    with pytest.raises(ValueError, match="only tokens"):
        model.generate(prompt, phrases=PHRASES, **copy.deepcopy(how), **GREEDY)
    expected = model.backbone.generate(prompt, **copy.deepcopy(how), **GREEDY)
    assert torch.equal(model.generate(prompt, **how, **GREEDY), expected)


def test_a_model_is_not_changed_by_the_phrases_of_a_call():
    model, prompt = copy.deepcopy(make_phrase_model()), token_ids(2, 5)
    before = copy.deepcopy((dict(model.state_dict()), model.generation_config.to_dict()))
    plain = model.generate(prompt, generation_config=GenerationConfig(**GREEDY))
    model.generate(prompt, phrases=[PHRASES, OTHERS], max_new_static_tokens=9, **GREEDY)
    assert torch.equal(plain, model.generate(prompt, **GREEDY))
    assert_same(model.state_dict(), before[0], rtol=0, atol=0)
    assert model.generation_config.to_dict() == before[1]


SUBWORDS = train_bpe_tokenizer(["the cat sat on the mat and the dog ran over the hill\n"] * 3, 300)


def indexed_model(seed=0):
    backbone = make_backbone("gpt2", seed, vocab_size=len(SUBWORDS))
    return DynamicVocabForCausalLM.from_base(backbone, phrase_start="encoder").eval()


def indexed_phrases():
    vocabulary = PhraseVocabulary.from_token_ids([[a, a + 1, b] for a in range(20, 100) for b in (50, 60)], SUBWORDS)
    vocabulary.remove([vocabulary.vocab_size + 3])
    return vocabulary


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.usefixtures("clear_choices")
def test_a_saved_index_of_all_phrases_generates_what_the_table_does_and_is_refused_for_others(engine, tmp_path):
    for name in ("faiss", MODULES.get(engine, "faiss")):
        pytest.importorskip(name)
    build, load = ENGINES[engine]
    model, vocabulary = indexed_model(), indexed_phrases()
    model.index_phrases(vocabulary, build, folder=tmp_path / "store")
    index = load(tmp_path / "store", fingerprint=model.phrase_fingerprint(vocabulary))
    ids = torch.tensor([[30, 31, 32]])
    given = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}

    def prefer_phrases(input_ids, scores):
        return scores + 3 * (torch.arange(scores.shape[1]) >= vocabulary.vocab_size)

    given["logits_processor"] = [prefer_phrases]
    expected = model.generate(ids, phrases=vocabulary, **given)
    found = model.generate(ids, phrases=vocabulary, phrase_index=index, num_neighbours=len(index), **given)
    assert torch.equal(found, expected)
    assert (expected >= vocabulary.vocab_size).any()
    other = indexed_model(seed=1)
    with pytest.raises(ValueError, match="phrase encoder"):
        load(tmp_path / "store", fingerprint=other.phrase_fingerprint(vocabulary))
    distances = VectorIndex.build(torch.eye(len(index)), metric="distance")
    with pytest.raises(ValueError, match="by distance"):
        model.generate(ids, phrases=vocabulary, phrase_index=distances, **given)
    vocabulary.add_token_ids([[70, 71]])
    with pytest.raises(ValueError, match="build it anew"):
        model.generate(ids, phrases=vocabulary, phrase_index=index, **given)
    with pytest.raises(ValueError, match="phrases"):
        load(tmp_path / "store", fingerprint=model.phrase_fingerprint(vocabulary))
