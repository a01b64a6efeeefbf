"""Published checkpoints of DINOISER compute what the published program computes."""

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM, default_data_collator

from hf_targets import DifformerForConditionalGeneration, GaussianDiffusionTrainer, GaussianDiffusionTrainingArguments
from hf_targets.training.lora import add_lora
from tests.gaussian_diffusion.published_dinoiser import (
    LATENT,
    POSITIONS,
    SOURCE_WORDS,
    WORDS,
    Program,
    published_options,
)
from tests.memory import realigned
from tests.trainer_runs import CHECKPOINTING

SOURCE = torch.tensor([[0, 7, 9, 22, 11, 2], [0, 5, 6, 2, 1, 1]])


def checkpoint(**options):
    return {"args": None, "cfg": {"model": published_options(**options)}, "model": Program().state_dict()}


def loaded(content=None, **fields):
    return DifformerForConditionalGeneration.from_published(checkpoint() if content is None else content, **fields)


@torch.no_grad()
def test_it_predicts_what_the_published_program_predicts(tmp_path):
    program, model = Program().double(), loaded().double()
    padding, keep = SOURCE == 1, torch.ones(2, 7, dtype=torch.bool)
    states = program.read(SOURCE, padding)
    read = model.encode(SOURCE)
    torch.testing.assert_close(read.hidden[~padding], states[~padding])
    torch.testing.assert_close(model(SOURCE).length_logits, program.lengths(states, padding))
    draws = torch.Generator().manual_seed(1)
    for time in (1.0, 0.99, 0.3):
        state, previous = torch.randn(2, 2, 7, LATENT, generator=draws, dtype=torch.float64)
        times = torch.full((2,), time, dtype=torch.float64)
        expected = program.denoise(states, padding, state, previous, times)
        found = model.denoise(state, previous, model.process.told(times), keep, read)
        torch.testing.assert_close(found.embeddings, expected, rtol=1e-4, atol=1e-4)  # times are in float32
        torch.testing.assert_close(model.word_logits(expected), expected @ program.table().T)
    torch.testing.assert_close(model.embedded(torch.arange(WORDS)), program.table())


def test_it_is_saved_trained_and_writes_as_any_model(tmp_path):
    model = loaded()
    assert (model.config.vocab_size, model.config.source_vocab_size) == (WORDS, SOURCE_WORDS)
    assert (model.config.preset, model.config.dropout, model.config.num_attention_heads) == ("dinoiser", 0.2, 2)
    assert (model.config.attention_dropout, model.config.activation_dropout) == (0.2, 0.2)  # of torch's layers
    assert model.config.max_position_embeddings == POSITIONS
    model.save_pretrained(tmp_path)
    again = realigned(AutoModelForSeq2SeqLM.from_pretrained(tmp_path))
    texts = [one.generate(SOURCE, generator=torch.Generator().manual_seed(0), num_lengths=2) for one in (model, again)]
    assert torch.equal(*texts)
    assert torch.equal(again(SOURCE).length_logits, model(SOURCE).length_logits)
    again.train()(SOURCE, labels=torch.tensor([[0, 5, 2], [0, 2, -100]])).loss.backward()
    assert all(parameter.grad is not None for parameter in again.parameters())
    with pytest.raises(ValueError, match=f"labels .*got {WORDS}"):
        model(SOURCE, labels=torch.full((2, 3), WORDS))


def test_ids_of_each_side_are_looked_at_before_a_training(tmp_path):
    rows = {"input_ids": [[0, 22, 2]], "attention_mask": [[1, 1, 1]], "labels": [[0, 19, 2]]}
    args = GaussianDiffusionTrainingArguments(str(tmp_path), use_cpu=True, report_to="none", ema_decay=None)
    trainer = GaussianDiffusionTrainer(loaded(), args, data_collator=default_data_collator)
    assert trainer.evaluate(Dataset.from_dict(rows))["eval_loss"] > 0
    for side, told in (("input_ids", SOURCE_WORDS), ("labels", WORDS)):
        wrong = Dataset.from_dict({**rows, side: [[0, told, 2]]})
        with pytest.raises(ValueError, match=rf"{side} .*got {told}"):
            trainer.evaluate(wrong)


def test_adapters_of_an_encoder_with_its_own_embeddings_are_trained_with_checkpointing():
    tuned = add_lora(loaded(), 2).train()
    for reentrant in (False, True):
        getattr(tuned, f"{CHECKPOINTING}_enable")({"use_reentrant": reentrant})
        tuned.enable_input_require_grads()
        torch.manual_seed(0)
        tuned(SOURCE, labels=torch.tensor([[5, 6, 2], [7, 2, -100]])).loss.backward()
        trained = {name: parameter for name, parameter in tuned.named_parameters() if parameter.requires_grad}
        assert any("encoder.layers.0" in name for name in trained)
        assert all(parameter.grad is not None for parameter in trained.values()), reentrant
        tuned.zero_grad()


def without(name):
    return {**checkpoint(), "model": {key: tensor for key, tensor in Program().state_dict().items() if key != name}}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (checkpoint(dec_prenorm=True), "dec_prenorm"),
        (checkpoint(normalized_embedding=False), "normalized_embedding"),
        (without("decoder.trm.layers.1.multihead_attn.in_proj_bias"), "missing: decoder.layers.1.encoder_attn.k_proj"),
        (without("vae.embedding.weight"), "vae.embedding"),
        (Program().state_dict(), "num_attention_heads"),
    ],
    ids=["before", "raw", "missing", "embedding", "bare"],
)
def test_what_does_not_fit_is_refused(content, told):
    with pytest.raises(ValueError, match=told):
        loaded(content)
