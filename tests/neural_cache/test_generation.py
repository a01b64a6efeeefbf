"""A cache in `generate`: greedy text is that of a loop without key-value cache; beams, padding, threads."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Thread

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertLMHeadModel

from hf_targets import NeuralCache, cache_processor
from tests.awd_lstm.models import make_awd_lstm
from tests.tiny_backbones import SMALL, left_padded, make_backbone, token_ids
from tests.tiny_models import make_model, make_sliding_model

CACHE = NeuralCache(window=6, theta=2.0, weight=0.6)
NEW = {"max_new_tokens": 9, "eos_token_id": None, "pad_token_id": 0, "do_sample": False}


def generate(model, ids, cache=CACHE, **options):
    with cache_processor(cache, model) as processor:
        return model.generate(ids, logits_processor=[processor], **{**NEW, **options})


def next_scores(model, ids, cache):
    """Return log p of the word after each text (batch, time), from a pass over the whole of it."""
    output = model(ids, output_hidden_states=True)
    states, memory = output.hidden_states[-1], None
    memory = cache.memory(len(ids), states)
    memory.append(states[:, :-1], ids[:, 1:])
    return cache.mix(output.logits[:, -1].float().log_softmax(dim=-1), states[:, -1], memory)


every_model = pytest.mark.parametrize(
    "make",
    [
        lambda: make_backbone("gpt2"),
        lambda: make_backbone("llama"),
        lambda: make_backbone("opt"),
        make_model,
        make_awd_lstm,
    ],
)


@every_model
def test_every_step_has_the_scores_of_a_pass_over_the_whole_text(make):
    model, ids = make(), token_ids(3, 5)
    found = generate(model, ids, output_scores=True, return_dict_in_generate=True)
    for step, scores in enumerate(found.scores):
        expected = next_scores(model, found.sequences[:, : 5 + step], CACHE)
        torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)


@every_model
def test_each_row_of_a_padded_batch_is_what_it_is_alone(make):
    model = make()
    ids, mask = left_padded(3, 7)
    options = {"output_scores": True, "return_dict_in_generate": True}
    together = generate(model, ids, attention_mask=mask, **options)
    for row in range(3):
        kept = mask[row].bool()
        alone = generate(model, ids[row, kept][None], **options)
        for step, scores in enumerate(alone.scores):
            if not torch.equal(together.sequences[row, 7 : 7 + step], alone.sequences[0, kept.sum() :][:step]):
                break
            torch.testing.assert_close(scores[0], together.scores[step][row], rtol=1e-4, atol=1e-4)
        assert step > 0


def test_beams_have_the_scores_of_passes_over_their_texts():
    model, ids = make_backbone("gpt2"), token_ids(2, 5)
    options = {"num_beams": 3, "num_return_sequences": 3, "output_scores": True, "return_dict_in_generate": True}
    found = generate(model, ids, length_penalty=0.0, **options)
    for row, sequence in enumerate(found.sequences):
        total = 0.0
        for step in range(5, len(sequence)):
            total += next_scores(model, sequence[None, :step], CACHE)[0, sequence[step]].item()
        assert found.sequences_scores[row].item() == pytest.approx(total, rel=1e-3)


def test_without_a_share_the_text_is_the_models_own_and_one_processor_serves_texts_one_after_the_other():
    model, ids = make_backbone("gpt2"), token_ids(2, 5)
    assert torch.equal(generate(model, ids, NeuralCache(weight=0.0)), model.generate(ids, **NEW))
    with cache_processor(CACHE, model) as processor:
        texts = [model.generate(ids, logits_processor=[processor], **NEW) for _ in range(2)]
    assert torch.equal(*texts) and not model.base_model._forward_hooks


def test_two_threads_have_a_cache_each():
    model, rows = make_backbone("gpt2"), [token_ids(1, 5, seed=seed) for seed in range(4)]
    one_by_one = [generate(model, ids) for ids in rows]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, pool.map(lambda ids: generate(model, ids), rows), one_by_one))


def test_without_key_value_cache_the_text_is_the_same():
    model, ids = make_backbone("gpt2"), token_ids(3, 5)
    assert torch.equal(generate(model, ids, use_cache=False), generate(model, ids))


def repeating():
    return (torch.arange(12)[None] % 4) + 1


@pytest.mark.parametrize("way", [{"cache_implementation": "static"}, {"prefill_chunk_size": 3}], ids=str)
@pytest.mark.parametrize("make", [lambda: make_backbone("llama"), lambda: make_sliding_model().backbone])
def test_however_a_padded_prompt_is_read_its_words_are_remembered_without_padding(make, way):
    model, long = make(), replace(CACHE, window=20)
    ids, mask = left_padded(3, 12)
    options = {"attention_mask": mask, "output_scores": True, "return_dict_in_generate": True, "disable_compile": True}
    plain, other = generate(model, ids, long, **options), generate(model, ids, long, **options, **way)
    assert torch.equal(plain.sequences, other.sequences)
    for one, score in zip(plain.scores, other.scores, strict=True):
        torch.testing.assert_close(one, score, rtol=1e-4, atol=1e-4)


def test_texts_of_any_length_and_other_passes_may_come_in_between():
    model, ids = make_backbone("gpt2"), token_ids(1, 5)
    with cache_processor(CACHE, model) as processor:
        given = {**NEW, "logits_processor": [processor]}
        first = model.generate(ids, **given)
        model(ids)
        longer = model.generate(first, **given)
        one_more = model.generate(token_ids(1, len(longer[0]) + 1, seed=3), **given)
    assert torch.equal(longer, generate(model, first))
    assert torch.equal(one_more, generate(model, token_ids(1, len(longer[0]) + 1, seed=3)))


def test_a_streamer_reads_what_another_thread_writes():
    model, ids, found = make_backbone("gpt2"), token_ids(1, 5), []
    with cache_processor(CACHE, model) as processor:
        given = {**NEW, "logits_processor": [processor]}
        thread = Thread(target=lambda: found.append(model.generate(ids, **given)))
        thread.start()
        thread.join()
    assert torch.equal(found[0], generate(model, ids))


def test_a_model_under_peft_is_followed():
    model = make_backbone("llama")
    expected = generate(model, token_ids(2, 5))
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj"]))
    assert torch.equal(generate(adapted, token_ids(2, 5)), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"prompt_lookup_num_tokens": 2},
        {"assistant_model": make_backbone("gpt2", seed=1)},
        {"guidance_scale": 1.5},
        {"draft_tokens": 2},
    ],
    ids=lambda options: next(iter(options)),
)
def test_texts_that_are_not_written_token_by_token_are_refused(options):
    model = make_model() if "draft_tokens" in options else make_backbone("gpt2")
    with pytest.raises(ValueError, match="token by token"):
        generate(model, repeating(), **options)
    assert not model.base_model._forward_hooks and not model.get_output_embeddings()._forward_pre_hooks


def test_a_model_whose_output_embeddings_read_another_state_is_refused():
    config = BertConfig(**SMALL, intermediate_size=64, is_decoder=True)
    with pytest.raises(ValueError, match="read something else than its last hidden states"):
        generate(BertLMHeadModel(config).eval(), token_ids(1, 5))
