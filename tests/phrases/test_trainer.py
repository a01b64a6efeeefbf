import math

import pytest
import torch
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import default_data_collator

from hf_targets import DynamicVocabTrainer, DynamicVocabTrainingArguments
from hf_targets.maths.losses import IGNORED
from hf_targets.phrases.batches.negatives import InBatch, PreBatch, Prefixes
from hf_targets.phrases.trainer import DrawnRows
from tests import tiny_models
from tests.tiny_models import make_backbone, make_dynamic_model, token_ids
from tests.trainer_runs import SHORT, assert_same, losses, run_processes, weights

PARTS = ("loss_phrase", "loss_token", "loss_kl")


def blocks(rows: int, length: int = 14, seed: int = 0) -> Dataset:
    ids = (token_ids(rows, length, seed=seed) % 5 + 1).tolist()
    labels = [row[: length - number % 4] + [IGNORED] * (number % 4) for number, row in enumerate(ids)]
    mask = [[int(label != IGNORED) for label in row] for row in labels]
    return Dataset.from_dict({"input_ids": ids, "attention_mask": mask, "labels": labels})


class InOrder(DynamicVocabTrainer):
    """Takes the rows as they come, so that batches of any size have the same."""

    def _get_train_sampler(self, *args):
        return SequentialSampler(self.train_dataset)


def make_trainer(
    folder, model=None, collator="ours", train=None, evaluation=None, kind=DynamicVocabTrainer, **arguments
):
    options = {**SHORT, **arguments}
    model = make_dynamic_model("gpt2") if model is None else model
    return kind(
        model=model,
        args=DynamicVocabTrainingArguments(output_dir=str(folder), **options),
        data_collator=tiny_models.make_collator() if collator == "ours" else collator,
        train_dataset=blocks(32) if train is None else train,
        eval_dataset=blocks(7, seed=1) if evaluation is None else evaluation,
    )


@pytest.mark.parametrize("family", ["gpt2", "phi"])
def test_perplexities_are_those_of_the_losses_of_all_rows(family, tmp_path):
    model, dataset = make_dynamic_model(family), blocks(7, seed=1)
    options = {"negatives": None, "phrase_rate": 0.5}
    metrics = make_trainer(
        tmp_path, model, tiny_models.make_collator(**options), evaluation=dataset, seed=42, per_device_eval_batch_size=3
    ).evaluate()
    collate, sums = tiny_models.make_collator(**options).seeded(0), [0.0, 0.0]
    dataset = DrawnRows(dataset, 0)  # whatever the seed of the training
    for start in (0, 3, 6):
        batch = collate([dataset[[(0, row)]] for row in range(start, min(7, start + 3))])
        output = model(**batch)
        sums = [total + output.row_losses[name].sum() for total, name in zip(sums, ("token", "phrase"), strict=True)]
    ids, labels = torch.tensor(dataset.rows["input_ids"]), torch.tensor(dataset.rows["labels"])
    logp = (
        model(ids, attention_mask=torch.tensor(dataset.rows["attention_mask"])).logits[:, :-1].double().log_softmax(-1)
    )
    kept = labels[:, 1:] != IGNORED
    nll = -logp.gather(2, ids[:, 1:, None])[..., 0][kept].sum().item()
    assert metrics["eval_perplexity"] == pytest.approx(math.exp(nll / kept.sum()), rel=1e-4)
    assert metrics["eval_perplexity"] == pytest.approx(math.exp(sums[0] / kept.sum()), rel=1e-4)
    assert metrics["eval_best_path_perplexity"] == pytest.approx(math.exp(sums[1] / kept.sum()), rel=1e-4)


def test_evaluations_choose_the_same_phrases_and_leave_those_of_training_as_they_are(tmp_path):
    logs = []
    for evaluations in (0, 2):
        collator = tiny_models.make_collator(negatives=[InBatch(), PreBatch()], phrase_rate=0.5)
        trainer = make_trainer(tmp_path, None, collator)
        assert len({trainer.evaluate()["eval_best_path_perplexity"] for _ in range(evaluations)}) <= 1
        trainer.train()
        logs.append([[entry[name] for name in PARTS] for entry in losses(trainer)])
    assert logs[0] == logs[1]


@pytest.mark.parametrize(("workers", "persistent"), [(2, False), (1, True)])
def test_evaluations_and_predictions_have_the_same_phrases_whatever_workers_make_them(workers, persistent, tmp_path):
    results = []
    for options in ({}, {"dataloader_num_workers": workers, "dataloader_persistent_workers": persistent}):
        collator = tiny_models.make_collator(negatives=[InBatch(), PreBatch()], phrase_rate=0.5)
        trainer = make_trainer(tmp_path, make_dynamic_model("gpt2"), collator, **options)
        results += [trainer.evaluate()["eval_best_path_perplexity"] for _ in range(2)]
        predictions = 0 if persistent and options else 2  # such workers take seconds to end
        results += [trainer.predict(blocks(7, seed=1)).metrics["test_best_path_perplexity"] for _ in range(predictions)]
    assert len(set(results)) == 1


def test_a_plain_model_is_trained_and_scored_as_one_without_phrases(tmp_path):
    model = make_dynamic_model(phrase_loss_weight=0.0, kl_loss_weight=0.0)
    ours = make_trainer(tmp_path, model, optim="sgd", kind=InOrder)
    plain = make_trainer(tmp_path, make_dynamic_model().backbone, None, optim="sgd", kind=InOrder)
    assert plain.has_phrases is False
    before = ours.evaluate()["eval_perplexity"]
    assert plain.evaluate()["eval_perplexity"] == pytest.approx(before, rel=1e-5)
    for trainer in (ours, plain):
        trainer.train()
    assert_same(weights(model.backbone), weights(plain.model), rtol=1e-4, atol=1e-6)
    metrics = plain.evaluate()
    assert metrics["eval_perplexity"] == pytest.approx(ours.evaluate()["eval_perplexity"], rel=1e-5)
    assert metrics["eval_perplexity"] != pytest.approx(before, rel=1e-3)
    assert "eval_best_path_perplexity" not in metrics
    assert not set(PARTS) & set(losses(plain)[0])


def run_with_chance(folder, resume=None, **options):
    """Train for two epochs of 7 batches with dropout and chosen phrases, those of two batches before as negatives."""
    model = make_dynamic_model()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.2
    collator = tiny_models.make_collator(negatives=[InBatch(), PreBatch(2)], phrase_rate=0.5)
    collator.generator = None
    options = {"save_strategy": "steps", "save_steps": 3, "max_steps": -1, "num_train_epochs": 2, **options}
    trainer = make_trainer(folder, model, collator, train=blocks(28), **options)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, (weights(trainer.model), [[entry[name] for name in PARTS] for entry in losses(trainer)])


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Return a function that trains with options, once, and gives the folder of the run and what it ended with."""
    runs: dict[str, tuple] = {}

    def run(**options):
        if str(options) not in runs:
            folder = tmp_path_factory.mktemp("unbroken")
            runs[str(options)] = folder, run_with_chance(folder, **options)[1]
        return runs[str(options)]

    return run


@pytest.mark.parametrize(
    ("options", "stop"),
    [({"dataloader_num_workers": 2}, 9), ({"gradient_accumulation_steps": 2, "save_steps": 2}, 6)],
)
def test_a_run_resumed_within_an_epoch_ends_with_the_numbers_of_an_unbroken_one(options, stop, unbroken, tmp_path):
    folder, (whole, log) = unbroken(**options)
    _, (resumed, resumed_log) = run_with_chance(tmp_path, str(folder / f"checkpoint-{stop}"), **options)
    assert_same(whole, resumed, rtol=0, atol=0)
    assert log == resumed_log


_RESUMED = """
import sys, torch
from tests.phrases.test_trainer import run_with_chance

options = {"per_device_train_batch_size": 2, "ddp_backend": "gloo"}
_, whole = run_with_chance(sys.argv[1] + "/run", **options)
trainer, resumed = run_with_chance(sys.argv[1] + "/again", sys.argv[1] + "/run/checkpoint-9", **options)
if trainer.is_world_process_zero():
    torch.save((whole, resumed), sys.argv[1] + "/result.pt")
"""


def test_two_processes_resumed_within_an_epoch_end_with_the_numbers_of_an_unbroken_run(tmp_path):
    run_processes(_RESUMED, tmp_path)
    (whole, log), (resumed, resumed_log) = torch.load(tmp_path / "result.pt", weights_only=False)
    assert_same(whole, resumed, rtol=0, atol=0)
    assert log == resumed_log


def train_on_rows(folder, rows, **options):
    """Train with phrases that do not depend on chance: the windows of two tokens, one after another."""
    collator = tiny_models.make_collator(max_tokens=2, negatives=[Prefixes()])
    given = {"train": rows, "evaluation": blocks(7, seed=1).to_iterable_dataset(), "kind": InOrder, "optim": "sgd"}
    trainer = make_trainer(folder, make_dynamic_model("gpt2"), collator, **given, **options)
    trainer.train()
    return trainer, (weights(trainer.model), trainer.evaluate()["eval_perplexity"])


_STREAMED = """
import sys, torch
from tests.phrases.test_trainer import blocks, train_on_rows

rows = blocks(16).to_iterable_dataset()
trainer, result = train_on_rows(sys.argv[1], rows, per_device_train_batch_size=2, ddp_backend="gloo")
if trainer.is_world_process_zero():
    torch.save(result, sys.argv[1] + "/result.pt")
"""


def test_two_processes_on_a_stream_take_the_steps_that_one_takes_on_its_rows(tmp_path):
    run_processes(_STREAMED, tmp_path)
    streamed, perplexity = torch.load(tmp_path / "result.pt", weights_only=False)
    _, (whole, expected) = train_on_rows(tmp_path, blocks(16))
    assert_same(streamed, whole, rtol=1e-4, atol=1e-6)
    assert perplexity == pytest.approx(expected, rel=1e-4)


def test_workers_change_nothing_in_training_and_an_epoch_chooses_other_phrases_than_the_one_before(unbroken, tmp_path):
    (without, log), (with_workers, log_with) = (unbroken(**one)[1] for one in ({}, {"dataloader_num_workers": 2}))
    assert_same(without, with_workers, rtol=0, atol=0)
    assert log == log_with
    _, (_, log) = run_with_chance(tmp_path, save_strategy="no", learning_rate=0.0, train_sampling_strategy="sequential")
    assert all(one != other for one, other in zip(log[:7], log[7:], strict=True))


@pytest.mark.parametrize(
    ("make", "collator", "arguments", "says"),
    [
        (make_dynamic_model, default_data_collator, {}, "needs a PhraseCollator"),
        (make_backbone, "ours", {}, "needs another data_collator"),
        (make_dynamic_model, tiny_models.make_collator(vocab_size=60), {}, "vocab_size=50"),
        (make_dynamic_model, "ours", {"label_smoothing_factor": 0.1}, "label_smoothing_factor"),
        (make_dynamic_model, "ours", {"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches"),
    ],
)
def test_what_does_not_fit_is_refused_before_training_starts(make, collator, arguments, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        make_trainer(tmp_path, make(), collator, **arguments)
