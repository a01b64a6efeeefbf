"""Cosine regularisation beside any loss of Transformers' Trainer: once a step, in training alone, told in the log."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
)

from hf_targets import CosineRegularizedTrainer, TargetTrainingArguments, cosine_regularization
from hf_targets.cosine.trainer import CosineRegularizedSeq2SeqTrainer
from tests.tiny_backbones import SMALL, make_backbone, token_ids
from tests.tiny_seq2seq import make_pair_backbone
from tests.trainer_runs import SHORT, assert_same, losses, weights


def make_bert():
    torch.manual_seed(0)
    config = BertConfig(**SMALL, intermediate_size=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return BertForMaskedLM(config)


def uncounting(model):
    """Return the model, whose loss Trainer divides itself by the number of batches of a step.

    BERT and Marian do not divide by the number of a step's targets, and Trainer believes that they do.
    """
    model.accepts_loss_kwargs = False
    return model


MODELS = {
    "tied": lambda: make_backbone("qwen3"),
    "untied": lambda: make_backbone("llama"),
    "uncounting": lambda: uncounting(make_backbone("gpt2")),
    "masked": lambda: uncounting(make_bert()),
    "translation": lambda: uncounting(make_pair_backbone("marian")),
}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
some_models = pytest.mark.parametrize("make", [MODELS["tied"], MODELS["masked"]], ids=["tied", "masked"])


def rows(num_rows=16):
    ids = token_ids(num_rows, 9).tolist()
    return Dataset.from_dict({"input_ids": ids, "labels": ids, "attention_mask": [[1] * 9] * num_rows})


def make_trainer(folder, model, kind=CosineRegularizedTrainer, *, given=None, arguments=TrainingArguments, **options):
    options = {**SHORT, "report_to": "none", "optim": "sgd", "max_steps": 2, "max_grad_norm": 0.0, **options}
    args = arguments(output_dir=str(folder), **options)
    return kind(model, args, train_dataset=rows(), eval_dataset=rows(4), **given or {})


@every_model
def test_a_step_goes_down_the_loss_and_gamma_times_the_mean_cosine(make, tmp_path):
    model, gamma = make().eval(), 0.7  # without dropout; Trainer switches it on again
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trainer = make_trainer(tmp_path, model, given={"cosine_weight": gamma}, max_steps=1, learning_rate=1.0)
    batch = next(iter(trainer.get_train_dataloader()))
    model.train()
    (model(**batch).loss + gamma * cosine_regularization(model.get_output_embeddings().weight)).backward()
    expected = {name: (p - p.grad if p.grad is not None else p).detach() for name, p in model.named_parameters()}
    model.zero_grad()
    trainer.train()
    assert_same(dict(model.named_parameters()), expected, rtol=1e-4, atol=1e-5)


@some_models
def test_it_counts_once_however_many_batches_make_a_step(make, tmp_path):
    states, logs = [], []
    for size, accumulated in ((8, 1), (2, 4)):
        steps = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated}
        options = {**steps, "train_sampling_strategy": "sequential", "learning_rate": 0.5}
        trainer = make_trainer(tmp_path, make(), given={"cosine_weight": 3.0}, **options)
        trainer.train()
        states.append(weights(trainer.model))
        logs.append([[entry[name] for name in ("loss", "loss_cosine")] for entry in losses(trainer)])
    assert_same(*states, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(*map(torch.tensor, logs), rtol=1e-4, atol=1e-6)


@some_models
def test_with_gamma_0_it_is_transformers_own_trainer(make, tmp_path):
    states = []
    for kind, given in ((Trainer, {}), (CosineRegularizedTrainer, {"cosine_weight": 0.0})):
        trainer = make_trainer(tmp_path, make(), kind, given=given)
        trainer.train()
        states.append(weights(trainer.model))
    assert "loss_cosine" not in losses(trainer)[0]
    assert_same(*states, rtol=0, atol=0)


def test_the_log_tells_the_mean_cosine_and_an_evaluation_leaves_it_out(tmp_path):
    logged = {}
    for gamma in (0.0, 2.0):
        model = make_backbone("gpt2")
        cosine = cosine_regularization(model.get_output_embeddings().weight).item()
        trainer = make_trainer(tmp_path, model, given={"cosine_weight": gamma}, max_steps=1)
        logged[gamma] = trainer.evaluate()["eval_loss"]
        trainer.train()
        logged[gamma, "train"] = losses(trainer)[0]
    assert logged[0.0] == logged[2.0]
    entry = logged[2.0, "train"]
    assert entry["loss_cosine"] == pytest.approx(cosine, rel=1e-4)
    assert entry["loss"] == pytest.approx(logged[0.0, "train"]["loss"] + 2 * cosine, rel=1e-4)


def test_training_turns_embeddings_in_a_cone_apart(tmp_path):
    ends = {}
    for gamma in (0.0, 1.0):
        model = make_backbone("llama")
        with torch.no_grad():
            model.lm_head.weight.add_(0.3)
        make_trainer(tmp_path, model, given={"cosine_weight": gamma}, optim="adamw_torch", max_steps=60).train()
        ends[gamma] = cosine_regularization(model.lm_head.weight).item()
    assert ends[0.0] > 0.5 and ends[1.0] < 0.45, ends


def test_translations_are_generated_in_evaluations(tmp_path):
    given = {"compute_metrics": lambda found: {"is_text": found.predictions.ndim == 2}}
    options = {"predict_with_generate": True}
    kind, model = CosineRegularizedSeq2SeqTrainer, make_pair_backbone("marian")
    trainer = make_trainer(tmp_path, model, kind, given=given, arguments=Seq2SeqTrainingArguments, **options)
    trainer.train()
    assert losses(trainer)[0]["loss_cosine"] != 0 and trainer.evaluate()["eval_is_text"]


def test_adapters_with_a_copy_of_the_output_embeddings_are_trained(tmp_path):
    model = get_peft_model(make_backbone("llama"), LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"]))
    copied = model.base_model.model.lm_head.modules_to_save["default"].weight
    before = copied.detach().clone()
    trainer = make_trainer(tmp_path, model, given={"cosine_weight": 50.0}, learning_rate=0.1, max_steps=5)
    trainer.train()
    assert cosine_regularization(copied) < cosine_regularization(before) - 1e-3


def switched_adapter():
    """Return adapters of which the active one has no copy of the output embeddings."""
    model = get_peft_model(make_backbone("llama"), LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"]))
    model.add_adapter("other", LoraConfig(target_modules=["q_proj"]))
    model.set_adapter("other")
    return model


@pytest.mark.parametrize(
    ("make", "given", "told"),
    [
        (lambda: get_peft_model(make_backbone("llama"), LoraConfig(target_modules=["q_proj"])), {}, "frozen"),
        (lambda: get_peft_model(make_backbone("llama"), LoraConfig(target_modules=["lm_head"])), {}, "frozen"),
        (switched_adapter, {}, "frozen"),
        (lambda: make_backbone("gpt2"), {"cosine_weight": -1.0}, "cosine_weight"),
        (lambda: make_backbone("gpt2"), {"ignore_index": 99}, "ignore_index"),
        (lambda: BertModel(make_bert().config), {}, "BertModel"),
    ],
)
def test_what_cannot_be_regularised_is_refused(make, given, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        make_trainer(tmp_path, make(), given=given)


def test_without_gamma_a_model_needs_no_output_embeddings(tmp_path):
    make_trainer(tmp_path, BertModel(make_bert().config), given={"cosine_weight": 0.0})


def test_gamma_is_that_of_the_arguments_where_they_have_one(tmp_path):
    options = {"arguments": TargetTrainingArguments, "cosine_weight": 0.25}
    assert make_trainer(tmp_path, make_backbone("gpt2"), **options)._cosine.weight == 0.25
    assert make_trainer(tmp_path, make_backbone("gpt2"), given={"cosine_weight": 2.0}, **options)._cosine.weight == 2
    assert make_trainer(tmp_path, make_backbone("gpt2"))._cosine.weight == 1
