import math

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import DataCollatorForLanguageModeling as DataCollator
from transformers import DataCollatorWithPadding

from hf_targets import MultiTokenForCausalLM, MultiTokenTrainer, MultiTokenTrainingArguments
from hf_targets.multitoken.trainer import perplexities
from tests.tiny_models import VOCAB, WORDS, make_backbone, make_model, token_ids
from tests.trainer_runs import CHECKPOINTING, SHORT, assert_same, losses, weights

FUNCTIONS = ("preprocess_logits_for_metrics", "compute_loss_func")


def blocks(rows: int, length: int = 12, seed: int = 0) -> Dataset:
    ids = token_ids(rows, length, seed=seed).tolist()
    labels = [row.copy() for row in ids]
    for number, row in enumerate(labels):  # rows of different numbers of targets, as padding makes them
        row[length - number % 5 :] = [-100] * (number % 5)
    mask = [[int(label != -100) for label in row] for row in labels]
    return Dataset.from_dict({"input_ids": ids, "attention_mask": mask, "labels": labels, "num_words": [4] * rows})


def make_trainer(folder, model=None, train=None, evaluation=None, collator=None, **arguments):
    own = {name: arguments.pop(name) for name in arguments.keys() & {*FUNCTIONS}}
    options = {**SHORT, "ensemble_weights": [0.0, 0.3], **arguments}
    return MultiTokenTrainer(
        model=make_model("gpt2") if model is None else model,
        args=MultiTokenTrainingArguments(output_dir=str(folder), **options),
        train_dataset=blocks(32) if train is None else train,
        eval_dataset=blocks(7, seed=1) if evaluation is None else evaluation,
        data_collator=collator,
        **own,
    )


def _recorded_training(monkeypatch, folder, model, **arguments):
    """Train, and return the trainer and, for each step, its batch and whether the backbone was still as at first."""
    before, steps = weights(model), []
    training_step = MultiTokenTrainer.training_step

    def recorded(trainer, model, inputs, *args, **kwargs):
        now = weights(model)
        same = all(torch.equal(now[name], before[name]) for name in before if "heads." not in name)
        steps.append((inputs["input_ids"].tolist(), same))
        return training_step(trainer, model, inputs, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(MultiTokenTrainer, "training_step", recorded)
        trainer = make_trainer(folder, model, logging_steps=1, **arguments)
        trainer.train()
    return trainer, steps


def test_heads_learn_alone_before_a_training_that_is_the_plain_models(tmp_path, monkeypatch):
    schedule = {"max_steps": 4, "lr_scheduler_type": "linear", "warmup_steps": 2, "weight_decay": 0.1}
    plain, plain_steps = _recorded_training(monkeypatch, tmp_path, make_backbone("gpt2"), **schedule)
    model = make_model("gpt2")
    first_heads = weights(model.heads)
    heads, steps = _recorded_training(monkeypatch, tmp_path, model, head_warmup_steps=3, **schedule)
    assert [same for _, same in steps[:4]] == [True] * 4, "the backbone moved while the heads learnt alone"
    assert not steps[-1][1]
    assert [batch for batch, _ in steps[3:]] == [batch for batch, _ in plain_steps]
    assert heads.state.global_step == plain.state.global_step == 4
    rates = [
        [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry] for trainer in (heads, plain)
    ]
    assert rates[0] == rates[1]
    assert all(not torch.equal(tensor, first_heads[name]) for name, tensor in weights(model.heads).items())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("options", [{}, {"bf16": True}, {CHECKPOINTING: True}])
def test_only_the_heads_move_in_their_own_phase(options, tmp_path):
    model = make_model("gpt2")
    forward, before = model.forward, weights(model)
    trainer = make_trainer(tmp_path, model, weight_decay=0.1, head_learning_rate=0.05, **options)
    trainer._train_heads_alone(3)
    for name, tensor in weights(model).items():
        assert torch.equal(tensor, before[name]) == ("heads." not in name), name
    assert model.forward == forward  # nothing of the phase is left around it


@pytest.mark.parametrize("steps", [None, 0])
def test_new_heads_on_a_trained_model_have_a_phase_and_a_rate_of_their_own_by_default(steps, tmp_path):
    make_backbone("gpt2").save_pretrained(tmp_path)
    model = MultiTokenForCausalLM.from_base(tmp_path, ngram_size=3)
    trainer = make_trainer(tmp_path, model, max_steps=3, learning_rate=1e-5, head_warmup_steps=steps)
    assert trainer._head_warmup_steps == (3 if steps is None else 0)
    for part in (model.backbone, model.heads):  # all of the training is that phase, or nothing of that phase learns
        part.requires_grad_(False)
        assert not trainer._head_warmup_steps
        part.requires_grad_(True)
    trainer.train()
    assert {group["initial_lr"] for group in trainer.optimizer.param_groups} == {1e-5, 1e-3}
    assert make_trainer(tmp_path, model)._head_warmup_steps == 0  # the heads are trained
    with pytest.raises(ValueError, match="frozen"):
        make_trainer(tmp_path, make_model("gpt2").requires_grad_(False), head_warmup_steps=2).train()
    assert make_trainer(tmp_path).new_parts_learning_rate is None  # of a random model


def test_a_model_that_began_at_random_keeps_its_rate_when_it_is_evaluated_first_and_when_it_is_loaded(tmp_path):
    model, options = make_model("gpt2"), {"save_strategy": "steps", "save_steps": 1, "learning_rate": 1e-4}
    model.backbone.name_or_path = model.config.backbone.name_or_path = "base"
    for steps in (1, 2):
        trainer = make_trainer(tmp_path, model, max_steps=steps, evaluation=blocks(3), **options)
        trainer.evaluate()
        trainer.train(resume_from_checkpoint=steps == 2)
        assert {group["initial_lr"] for group in trainer.optimizer.param_groups} == {1e-4}
        model = MultiTokenForCausalLM.from_pretrained(tmp_path / "checkpoint-1")


def test_deepspeed_with_a_phase_of_the_heads_is_refused_before_anything_is_trained(tmp_path, monkeypatch):
    create = MultiTokenTrainer.create_accelerator_and_postprocess

    def under_deepspeed(trainer):
        create(trainer)
        trainer.is_deepspeed_enabled = True

    monkeypatch.setattr(MultiTokenTrainer, "create_accelerator_and_postprocess", under_deepspeed)
    with pytest.raises(ValueError, match="DeepSpeed"):
        make_trainer(tmp_path, head_warmup_steps=2)
    make_trainer(tmp_path)


def test_a_resumed_run_has_had_the_phase_of_its_heads(tmp_path, monkeypatch):
    def run(folder, resume=None):
        options = {"head_warmup_steps": 2, "save_strategy": "steps", "save_steps": 2, "max_steps": 4}
        trainer = make_trainer(folder, make_model("gpt2"), lr_scheduler_type="linear", **options)
        trainer.train(resume_from_checkpoint=resume)
        return weights(trainer.model)

    whole = run(tmp_path / "one")
    monkeypatch.setattr(MultiTokenTrainer, "_train_heads_alone", None)
    assert_same(whole, run(tmp_path / "two", str(tmp_path / "one" / "checkpoint-2")), rtol=0, atol=0)


@pytest.mark.parametrize("family", ["gpt2", "phi"])
def test_perplexities_are_those_of_the_logits_of_all_rows(family, tmp_path):
    model = make_model(family)
    dataset = blocks(7, seed=1)
    metrics = make_trainer(tmp_path, model, evaluation=dataset, per_device_eval_batch_size=3).evaluate()
    batch = {name: torch.tensor(dataset[name]) for name in ("input_ids", "attention_mask", "labels")}
    targets = batch.pop("labels")[:, 1:]
    for weight in (0.0, 0.3):
        logp = model(**batch, ensemble_weight=weight).logits[:, :-1].double().log_softmax(-1)
        nll = -logp.gather(2, targets.clamp(min=0)[..., None])[..., 0][targets >= 0].sum().item()
        assert metrics[f"eval_perplexity_{weight:g}"] == pytest.approx(math.exp(nll / (targets >= 0).sum()), rel=1e-4)
        assert metrics[f"eval_word_perplexity_{weight:g}"] == pytest.approx(math.exp(nll / 28), rel=1e-4)
    assert metrics["eval_perplexity"] == metrics["eval_perplexity_0"]
    assert metrics["eval_ensemble_weight"] == 0.3


@pytest.mark.parametrize("plain", [True, False])
def test_what_nothing_can_predict_is_neither_scored_nor_counted(plain, tmp_path):
    documents = [token_ids(1, 5, seed=number)[0].tolist() for number in range(8)]
    alone = {"input_ids": documents, "labels": documents, "attention_mask": [[1] * 5] * 8}
    padded = {
        "input_ids": [[0, 0, *ids] for ids in documents],
        "labels": [[-100, -100, *ids] for ids in documents],
        "attention_mask": [[0, 0, 1, 1, 1, 1, 1]] * 8,
        "position_ids": [[0, 0, 0, 1, 2, 3, 4]] * 8,
    }
    packed = {
        "input_ids": [documents[i] + documents[i + 1] for i in range(0, 8, 2)],
        "labels": [documents[i] + documents[i + 1] for i in range(0, 8, 2)],
        "position_ids": [[0, 1, 2, 3, 4] * 2] * 4,
    }
    figures = []
    for columns in (alone, padded, packed):
        model = make_model("llama")
        dataset = Dataset.from_dict(columns)
        trainer = make_trainer(
            tmp_path,
            model.backbone if plain else model,
            train=dataset,
            evaluation=dataset,
            max_steps=1,
            per_device_train_batch_size=len(dataset),
        )
        evaluated = trainer.evaluate()["eval_perplexity" if plain else "eval_perplexity_0.3"]
        trainer.train()
        figures.append((evaluated, next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)))
    for other in figures[1:]:
        assert other == pytest.approx(figures[0], rel=1e-4)


def test_a_model_that_model_init_makes_is_trained_as_one_that_is_given(tmp_path):
    def make():
        torch.manual_seed(0)
        return make_model("gpt2")

    found, options = [], {"cosine_weight": 0.5, "head_warmup_steps": 0, "train_sampling_strategy": "sequential"}
    for given in ({"model": make()}, {"model_init": make}):
        args = MultiTokenTrainingArguments(output_dir=str(tmp_path), **SHORT, **options)
        trainer = MultiTokenTrainer(**given, args=args, train_dataset=blocks(32), eval_dataset=blocks(7, seed=1))
        trainer.train()
        found.append((losses(trainer)[-1]["loss"], trainer.evaluate()["eval_perplexity_ensemble"]))
    assert found[0] == found[1]
    trainer.args.head_warmup_steps = 1
    with pytest.raises(ValueError, match="model_init makes anew"):
        trainer.train()


def test_rows_that_a_transform_makes_when_they_are_asked_for_are_trained_on_as_others(tmp_path):
    made, found = blocks(32), []
    numbers = Dataset.from_dict({"number": range(32)}).with_transform(lambda batch: made[batch["number"]])
    for rows in (made, numbers):
        trainer = make_trainer(tmp_path, train=rows, remove_unused_columns=False)
        trainer.train()
        found.append([entry["loss"] for entry in losses(trainer)])
    assert found[0] == found[1]


def test_best_weight_is_the_one_of_the_lowest_perplexity_beside_that_of_the_weight_0(tmp_path):
    trainer = make_trainer(tmp_path, ensemble_weights=[0.1, 0.4])
    metrics = trainer.metrics(torch.tensor([[10.0, 8.0, 20.0], [20.0, 12.0, 5.0]]), 10, 5)
    assert metrics["perplexity"] == pytest.approx(math.exp(3))
    assert metrics["word_perplexity"] == pytest.approx(math.exp(6))
    assert metrics["ensemble_weight"] == 0.1
    assert metrics["perplexity_ensemble"] == pytest.approx(math.exp(2))
    assert "word_perplexity" not in perplexities({"": 30.0}, 10, 0)
    assert perplexities({"": 8000.0}, 10, 1)["word_perplexity"] == math.inf


def test_lora_trains_through_the_trainer_and_merges(tmp_path):
    base = make_model("llama")
    before = weights(base.backbone)
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], modules_to_save=["heads"]))
    trainer = make_trainer(tmp_path, model, head_warmup_steps=1, head_learning_rate=0.05)
    assert trainer.has_heads
    trainer.train()
    metrics = trainer.evaluate()
    merged = model.merge_and_unload()
    again = make_trainer(tmp_path, merged).evaluate()
    assert again["eval_perplexity_0.3"] == pytest.approx(metrics["eval_perplexity_0.3"], rel=1e-4)
    changed = {name for name, tensor in weights(merged.backbone).items() if not torch.equal(tensor, before[name])}
    assert changed
    assert all("q_proj" in name or "v_proj" in name for name in changed)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("how", ["lora", "modules_to_save", "trainable_token_indices"])
def test_embeddings_that_peft_wraps_are_trained(how, family, tmp_path):
    name = "wte" if family == "gpt2" else "embed_tokens"
    options = {
        "lora": {"target_modules": [name]},
        "modules_to_save": {"target_modules": ["c_attn" if family == "gpt2" else "q_proj"], "modules_to_save": [name]},
        "trainable_token_indices": {"target_modules": "all-linear", "trainable_token_indices": {name: [1, 2]}},
    }
    config = LoraConfig(r=2, exclude_modules=".*(heads|lm_head).*", **options[how])
    model = get_peft_model(make_model(family), config)
    before = weights(model)
    trainer = make_trainer(tmp_path, model, max_steps=1)
    trainer.train()
    assert any(not torch.equal(tensor, before[key]) for key, tensor in weights(model).items())
    with pytest.raises(ValueError, match=f"got {VOCAB}"):
        make_trainer(tmp_path, model, train=Dataset.from_dict({"input_ids": [[VOCAB]], "labels": [[1]]}))


def test_labels_may_be_made_by_the_collator_as_for_the_plain_trainer(tmp_path):
    rows = blocks(8).select_columns(["input_ids"])
    WORDS.pad_token = WORDS.pad_token or WORDS.eos_token
    trainer = make_trainer(tmp_path, train=rows, evaluation=rows, max_steps=1, collator=DataCollator(WORDS, mlm=False))
    trainer.train()
    assert trainer.evaluate()["eval_perplexity"] > 1
    with pytest.raises(ValueError, match="labels"):
        make_trainer(tmp_path, train=rows, collator=DataCollatorWithPadding(WORDS)).train()


@pytest.mark.parametrize("argument", FUNCTIONS)
def test_functions_of_logits_that_the_trainer_does_not_have_are_refused(argument, tmp_path):
    with pytest.raises(ValueError, match=argument):
        make_trainer(tmp_path, **{argument: lambda *_: None})


def test_a_plain_model_is_measured_at_each_temperature_in_one_pass(tmp_path):
    trainer = make_trainer(tmp_path, model := make_backbone("gpt2"), temperatures=[0.5, 2.0], logging_steps=1)
    trainer.train()
    measured, weight = trainer.evaluate(), model.lm_head.weight
    model.lm_head.weight = torch.nn.Parameter(weight / 2)  # untied, so that only logits are halved
    halved = make_trainer(tmp_path, model, temperatures=[]).evaluate()
    assert measured["eval_perplexity_at_2"] == pytest.approx(halved["eval_perplexity"], rel=1e-5)
    best = min(measured[f"eval_perplexity_at_{temperature:g}"] for temperature in (0.5, 1.0, 2.0))
    assert measured["eval_perplexity_temperature"] == best and "eval_temperature" not in halved


@pytest.mark.parametrize(
    "field", [{"ensemble_weights": [1.5]}, {"temperatures": [0.0]}, {"ensemble_weights": []}, {"head_warmup_steps": -1}]
)
def test_arguments_out_of_range_are_told(field, tmp_path):
    with pytest.raises(ValueError, match="must"):
        make_trainer(tmp_path, **field)
    with pytest.raises(ValueError, match="has no heads"):
        make_trainer(tmp_path, make_backbone("gpt2"), head_warmup_steps=3)
