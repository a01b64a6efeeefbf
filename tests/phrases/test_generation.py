"""`generate` over tokens and phrases: by definition, cached or not, alone or in a batch."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from tests.choices import on_clear_draws
from tests.phrases.models import (
    OTHERS,
    PHRASES,
    RAGGED,
    WORDS,
    generate,
    make_phrase_model,
    random_vocabulary,
    vocabulary_of,
)
from tests.tiny_models import CACHED_FAMILIES, VOCAB, left_padded, token_ids

GREEDY = {"do_sample": False, "max_new_tokens": 8, "eos_token_id": None}
BEAMS = {**GREEDY, "num_beams": 3}
SAMPLED = {"do_sample": True, "temperature": 1.3, "top_k": 20, "max_new_tokens": 8, "eos_token_id": None}
ALL = {**GREEDY, "return_dict_in_generate": True, "output_scores": True, "output_logits": True}
every_family = pytest.mark.parametrize("family", CACHED_FAMILIES)
every_way = pytest.mark.parametrize("how", [GREEDY, BEAMS, SAMPLED], ids=["greedy", "beams", "sampled"])


@pytest.mark.parametrize(("family", "is_tied"), [("gpt2", True), ("opt", False)])
@pytest.mark.usefixtures("clear_choices")
def test_each_greedy_step_is_the_best_token_or_phrase(family, is_tied):
    model = make_phrase_model(family, tie_phrase_embeddings=is_tied)
    prompt = token_ids(2, 5)
    ids = model.generate(prompt, phrases=PHRASES, **GREEDY)
    assert ids.shape == (2, 13)  # a step, and an id, for each phrase
    best = model(ids[:, :-1], phrases=PHRASES).logits.argmax(dim=-1)
    assert torch.equal(ids[:, 5:], best[:, 4:])


@every_way
@pytest.mark.usefixtures("clear_choices")
@on_clear_draws
def test_cached_is_uncached(how):
    model = make_phrase_model()
    ids, mask = left_padded()
    cached = generate(model, ids, attention_mask=mask, phrases=RAGGED, **how)
    assert torch.equal(cached, generate(model, ids, attention_mask=mask, phrases=RAGGED, use_cache=False, **how))


@every_family
@pytest.mark.usefixtures("clear_choices")
def test_a_row_of_a_batch_with_a_vocabulary_for_each_is_what_it_is_alone(family):
    model, how = make_phrase_model(family), GREEDY if family == "gpt2" else BEAMS
    ids, mask = left_padded()
    together = model.generate(ids, attention_mask=mask, phrases=RAGGED, **how)
    for row, vocabulary in enumerate(RAGGED):
        start = int((mask[row] == 0).sum())
        alone = model.generate(ids[row : row + 1, start:], phrases=vocabulary, **how)
        assert torch.equal(together[row, start:], alone[0])


@every_way
def test_an_empty_vocabulary_is_the_base_model_bit_for_bit(how):
    model = make_phrase_model()
    ids, mask = left_padded()
    how = {**how, "attention_mask": mask, "return_dict_in_generate": True, "output_scores": True}
    expected = generate(model.backbone, ids, **how)
    for phrases in (None, vocabulary_of(), [vocabulary_of()] * 4):
        output = generate(model, ids, phrases=phrases, **how)
        assert torch.equal(output.sequences, expected.sequences)
        assert all(torch.equal(*pair) for pair in zip(output.scores, expected.scores, strict=True))


def test_two_threads_with_different_vocabularies_write_what_each_would_alone():
    model = make_phrase_model()
    prompt = token_ids(1, 5)
    vocabularies = [random_vocabulary(12, seed=seed) for seed in range(6)]
    how = {**GREEDY, "max_new_tokens": 20}
    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(lambda phrases: model.generate(prompt, phrases=phrases, **how), vocabularies * 2))
    for text, phrases in zip(texts, vocabularies * 2, strict=True):
        assert torch.equal(text, model.generate(prompt, phrases=phrases, **how))
    assert len({tuple(text[0].tolist()) for text in texts}) > 3


def in_row(vocabulary, ids):
    return all(id_ < VOCAB or id_ in vocabulary for id_ in ids.tolist())


@pytest.mark.parametrize(
    "how",
    [
        {"do_sample": True, "num_return_sequences": 3},
        {"num_beams": 3, "num_return_sequences": 3},
        {"do_sample": True, "num_beams": 3, "num_return_sequences": 2},
    ],
    ids=str,
)
def test_several_sequences_of_a_row_share_its_vocabulary(how):
    model = make_phrase_model()
    ids, mask = left_padded()
    texts = generate(model, ids, attention_mask=mask, phrases=RAGGED, max_new_tokens=8, eos_token_id=None, **how)
    each = how["num_return_sequences"]
    assert texts.shape == (4 * each, 15)
    assert all(in_row(RAGGED[number // each], row) for number, row in enumerate(texts))
    assert texts.max() >= VOCAB


@pytest.mark.parametrize("how", [{"top_k": 1}, {"top_p": 0.05, "top_k": 0}], ids=str)
def test_beams_that_are_left_without_a_continuation_do_no_harm(how):
    """Fewer continuations than beams: some beams have probability 0, and perhaps a phrase that their row does not."""
    model = make_phrase_model()
    how = {**SAMPLED, **how, "num_beams": 5}
    for seed in range(4):
        torch.manual_seed(seed)
        texts = model.generate(token_ids(2, 5), phrases=[PHRASES, OTHERS], no_repeat_ngram_size=3, **how)
        assert in_row(PHRASES, texts[0].clamp(min=0)) and in_row(OTHERS, texts[1].clamp(min=0))


@pytest.mark.usefixtures("clear_choices")
def test_a_prompt_with_phrases_goes_on_as_the_text_it_was_cut_from():
    model = make_phrase_model()
    prompt = torch.tensor([[3, VOCAB + 4, 5, VOCAB + 1], [VOCAB, 2, 4, VOCAB + 6]])
    whole = model.generate(prompt, phrases=OTHERS, **GREEDY)
    again = model.generate(whole[:, :8], phrases=OTHERS, **{**GREEDY, "max_new_tokens": 4})
    assert torch.equal(whole, again)


def test_a_prompt_with_a_phrase_that_its_row_does_not_have_is_refused():
    prompt = torch.tensor([[3, VOCAB + 9], [3, VOCAB + 9]])
    with pytest.raises(ValueError, match=f"got {VOCAB + 9} in row 1"):
        make_phrase_model().generate(prompt, phrases=[PHRASES, OTHERS], **GREEDY)


@pytest.mark.parametrize("how", [GREEDY, BEAMS], ids=["greedy", "beams"])
def test_embeddings_of_a_prompt_go_on_as_its_ids(how):
    model = make_phrase_model()
    prompt = token_ids(2, 5)
    embeds = model.get_input_embeddings()(prompt)
    texts = model.generate(inputs_embeds=embeds, phrases=PHRASES, **how)
    assert torch.equal(texts, model.generate(prompt, phrases=PHRASES, **how)[:, 5:])


@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_other_caches_give_the_same(cache):
    model = make_phrase_model()
    texts = model.generate(token_ids(2, 5), phrases=PHRASES, cache_implementation=cache, **GREEDY)
    assert torch.equal(texts, model.generate(token_ids(2, 5), phrases=PHRASES, **GREEDY))


def test_sampling_is_over_tokens_and_phrases_together():
    how = {**ALL, "do_sample": True, "temperature": 0.7, "top_k": 12, "top_p": 0.8}
    output = generate(make_phrase_model(), token_ids(2, 5), phrases=PHRASES, **how)
    for logits, scores in zip(output.logits, output.scores, strict=True):
        assert logits.shape == scores.shape == (2, VOCAB + 20)
        expected = TopPLogitsWarper(0.8)(None, TopKLogitsWarper(12)(None, TemperatureLogitsWarper(0.7)(None, logits)))
        assert torch.equal(scores, expected)
    assert any(scores[:, VOCAB:].isfinite().any() for scores in output.scores)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("how", [ALL, {**ALL, "num_beams": 3, "num_return_sequences": 2}], ids=["greedy", "beams"])
def test_transition_scores_are_those_of_the_steps_and_of_beams_add_up_to_those_of_the_sequences(how, normalize):
    model = make_phrase_model()
    output = model.generate(token_ids(2, 5), phrases=[PHRASES, OTHERS], **how)
    beams = getattr(output, "beam_indices", None)
    found = model.compute_transition_scores(output.sequences, output.scores, beams, normalize)
    assert (output.sequences >= VOCAB).any()
    for row, ids in enumerate(output.sequences[:, 5:]):
        for step, id_ in enumerate(ids):
            scores = output.scores[step][row if beams is None else beams[row, step]]
            torch.testing.assert_close(found[row, step], (scores.log_softmax(dim=-1) if normalize else scores)[id_])
    if beams is not None:
        torch.testing.assert_close(found.sum(dim=1) / 8, output.sequences_scores)  # a length penalty of 1, in steps


def test_beams_that_end_at_different_steps_can_be_decoded():
    vocabularies, limits = [random_vocabulary(), vocabulary_of([5, 6])], {**BEAMS, "pad_token_id": 0}
    limits |= {"max_new_tokens": None, "max_new_static_tokens": 10}
    output = make_phrase_model("gpt2").generate(token_ids(2, 4), phrases=vocabularies, **limits)
    assert (output >= 0).all()
    assert all(vocabulary.decode(row) for vocabulary, row in zip(vocabularies, output, strict=True))


def test_a_table_is_what_it_was_made_of_until_a_phrase_of_it_is_removed_which_is_written_no_more():
    model, ids = make_phrase_model(), token_ids(2, 5)
    vocabulary = PhraseVocabulary.from_token_ids([PHRASES.token_ids(id_) for id_ in PHRASES], WORDS, vocab_size=VOCAB)
    table = model.phrase_table([vocabulary, OTHERS])
    before = model.generate(ids, phrases=[vocabulary, OTHERS], **BEAMS)
    vocabulary.add_token_ids([[30, 31]])
    assert torch.equal(model.generate(ids, phrases=table, **BEAMS), before)
    removed = {id_ for id_ in before[0].tolist() if id_ >= VOCAB}
    assert removed
    vocabulary.remove(removed)
    with pytest.raises(ValueError, match="has changed"):
        model.generate(ids, phrases=table, **BEAMS)
    after = model.generate(ids, phrases=[vocabulary, OTHERS], **BEAMS)
    assert removed.isdisjoint(after[0].tolist())
