"""What every Trainer of ours owes, and every model under the Trainer of Transformers."""

import copy
import gc
import pickle
from dataclasses import replace
from weakref import ref

import pytest
import torch
from accelerate.state import GradientState
from datasets import Dataset
from safetensors.torch import load_file
from torch import nn
from transformers import DataCollatorWithFlattening, TrainingArguments

from hf_targets import TargetTrainingArguments, cosine_regularization
from hf_targets.backbones.new_parts import new_parameters
from hf_targets.masked_diffusion.rows import DiffusionCollator
from hf_targets.maths.losses import IGNORED
from tests.model_cases import CASES, TRAINERS, every_trainer, trainers_that, trainers_that_owe
from tests.tiny_backbones import VOCAB, token_ids
from tests.trainer_runs import CHECKPOINTING, assert_same, losses, run_processes, weights, with_dropout

plain_or_ours = pytest.mark.parametrize("plain", [False, True], ids=["ours", "plain"])
IN_ORDER = {"optim": "sgd", "max_steps": 3}
APART = {"cosine_weight": 0.5}
"""What each of our trainers can have beside its loss, and a plain one has not."""
RATES = ("runtime", "_per_second")
STEPS = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 2}


def assert_same_logs(one, other, *names):
    for name in names:
        assert [entry[name] for entry in one] == pytest.approx([entry[name] for entry in other], rel=1e-4)


def part_names(case):
    return [f"loss_{name}" for name in case.model.part_weights(case.model.make().train())]


@every_trainer
@plain_or_ours
def test_four_small_batches_take_the_step_of_one_large_one(case, plain, tmp_path):
    states, logs = [], []
    for batch, accumulated in ((4, 1), (1, 4)):
        sizes = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulated}
        sizes |= {"optim": "sgd", "max_steps": 1 if plain else 2}
        trainer = case.make(tmp_path, plain=plain, **sizes, **({} if plain else APART))
        trainer.train()
        states.append(weights(trainer.model))
        logs.append(losses(trainer))
    assert_same(*states, rtol=1e-4, atol=1e-5)
    assert_same_logs(*logs, "loss", "grad_norm", *([] if plain else [*part_names(case), "loss_cosine"]))


@every_trainer
def test_a_model_whose_outputs_are_tuples_is_trained_and_evaluated_alike(case, tmp_path):
    found = []
    for return_dict in (True, False):
        trainer = case.make(tmp_path, max_steps=1)
        trainer.model.config.return_dict = return_dict
        trainer.train()
        evaluated = {name: value for name, value in trainer.evaluate().items() if not name.endswith(RATES)}
        found.append((evaluated, losses(trainer), part_names(case)))
    assert found[0] == found[1]
    assert found[0][2] and set(found[0][2]) <= found[0][1][0].keys()


def train_in_order(case, folder, batch, **options):
    """Train, evaluate, and then train on rows that leave the model something to draw; tell what was seen."""
    options = {**IN_ORDER, **APART, "per_device_train_batch_size": batch, **options}
    trainer, drawn = case.make(folder, rows=case.rows(24), **options), []
    trainer.train()
    results = weights(trainer.model), losses(trainer), trainer.evaluate()
    if case.drawn:
        drawing = case.make(folder, rows=case.evaluated(24), **options)
        drawing.model.register_forward_hook(lambda module, inputs, output: drawn.append(output[case.drawn]))
        drawing.train()
    return trainer, (*results, drawn)


def packed(name, model, packing, **changes):
    """Return a trainer's case whose rows have no padding, and are packed into one."""
    case, collator = TRAINERS[name], packing()
    collator.padding_free = True

    def cut(row):
        kept = sum(row.pop("attention_mask", [1] * len(row["input_ids"])))
        return {key: value[:kept] if isinstance(value, list) else value for key, value in row.items()}

    def without_padding(make):
        return lambda count: Dataset.from_list([cut(row) for row in make(count)])

    made = {"rows": without_padding(case.rows), "evaluated": without_padding(case.evaluated)}
    return replace(case, model=CASES[model], collator=lambda: collator, **made, **changes)


IN_ONE_OR_TWO = TRAINERS | {
    "packed multitoken": packed("multitoken", "difference-llama", DataCollatorWithFlattening),
    "packed phrases": packed("phrases", "phrases-llama", TRAINERS["phrases"].collator),
    "packed diffusion": packed("masked_diffusion", "mdlm-plain-llama", DiffusionCollator, drawn=None),
}
_TWO = """
import sys, torch
from tests.contract.test_trainers import IN_ONE_OR_TWO, train_in_order

for name, case in IN_ONE_OR_TWO.items():
    trainer, results = train_in_order(case, f"{sys.argv[1]}/{name}", 4, ddp_backend="gloo")
    torch.save(results, f"{sys.argv[1]}/{name}{trainer.args.process_index}.pt")
"""


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """Return the folder of what two processes of a training saw, of all trainers: most of the time is their start."""
    folder = tmp_path_factory.mktemp("two")
    run_processes(_TWO, folder)
    return folder


@pytest.mark.parametrize("name", IN_ONE_OR_TWO)
def test_two_processes_take_the_step_of_one(name, two_processes, tmp_path):
    case = IN_ONE_OR_TWO[name]
    one, one_log, one_metrics, _ = train_in_order(case, tmp_path, 8)[1]
    (two, two_log, two_metrics, drawn), (other, *_, other_drawn) = (
        torch.load(two_processes / f"{name}{rank}.pt", weights_only=False) for rank in (0, 1)
    )
    assert_same(one, two, rtol=1e-4, atol=1e-6)
    assert_same(other, two, rtol=0, atol=0)
    assert_same_logs(one_log, two_log, "loss", "grad_norm", *part_names(case), "loss_cosine")
    assert_same_logs([one_metrics], [two_metrics], *(f"eval_{name}" for name in case.metrics))
    assert len(drawn) == len(other_drawn) == (3 if case.drawn else 0)
    for ours, theirs in zip(drawn, other_drawn, strict=True):
        assert not torch.isclose(ours, theirs).any()


@every_trainer
def test_the_logged_loss_is_the_weighted_sum_of_the_logged_parts(case, tmp_path):
    model = case.model.make()
    for name, weight in case.weights.items():
        setattr(model.config, name, weight)
    shares = case.model.part_weights(model.train())
    trainer = case.make(tmp_path, model, logging_steps=2)
    trainer.train()
    assert len(losses(trainer)) == 2
    for entry in losses(trainer):
        assert all(entry[f"loss_{name}"] > 0 for name in shares)
        total = sum(share * entry[f"loss_{name}"] for name, share in shares.items())
        assert entry["loss"] == pytest.approx(total, rel=1e-4)


@every_trainer
def test_output_embeddings_are_kept_apart_where_that_is_asked_for(case, tmp_path):
    logged = []
    for options in ({}, APART):
        model = case.model.make()
        cosine = cosine_regularization(model.get_output_embeddings().weight).item()
        trainer = case.make(tmp_path, model, max_steps=1, **options)
        trainer.train()
        logged.append(losses(trainer)[0])
    plain, apart = logged
    assert "loss_cosine" not in plain and apart["loss_cosine"] == pytest.approx(cosine, rel=1e-4)
    assert apart["loss"] == pytest.approx(plain["loss"] + 0.5 * cosine, rel=1e-4)
    with pytest.raises(ValueError, match=r"cosine_weight \(gamma\) must be 0 or more, got -1"):
        case.make(tmp_path, cosine_weight=-1.0)


@every_trainer
def test_a_resumed_run_ends_with_the_numbers_of_an_unbroken_one(case, tmp_path):
    def run(folder, resume=None):
        options = {**STEPS, "save_steps": 3, "lr_scheduler_type": "linear", "num_train_epochs": 1, "max_steps": -1}
        model, options = with_dropout(case.model.make()), {"train_sampling_strategy": "random", **options}
        trainer = case.make(folder, model, rows=case.rows(20), **options)
        trainer.train(resume_from_checkpoint=resume)
        seen = ("loss", "eval_", "grad_norm")
        log = [{k: v for k, v in entry.items() if k.startswith(seen)} for entry in trainer.state.log_history]
        times = ("eval_runtime", "eval_samples_per_second", "eval_steps_per_second")
        log = [{name: value for name, value in entry.items() if name not in times} for entry in log]
        last = folder / f"checkpoint-{trainer.state.global_step}"
        files = {file.name: load_file(file) for file in last.glob("*.safetensors")}
        return weights(trainer.model), log, files

    whole, log, files = run(tmp_path / "run")
    resumed, resumed_log, resumed_files = run(tmp_path / "again", str(tmp_path / "run" / "checkpoint-3"))
    assert_same(whole, resumed, rtol=0, atol=0)
    assert log[:-1] == resumed_log[:-1]  # the last entry is of the seconds that it took
    assert files.keys() == resumed_files.keys()
    for name in files:
        assert_same(files[name], resumed_files[name], rtol=0, atol=0)


@every_trainer
def test_training_in_half_precision_with_recomputation_lowers_every_part_of_the_loss(case, tmp_path):
    trainer = case.make(tmp_path, rows=case.rows(4), max_steps=15, bf16=True, **{CHECKPOINTING: True})
    trainer.train()
    for name in ("loss", *([] if "lower parts" in case.lacks else part_names(case))):
        assert losses(trainer)[-1][name] < 0.9 * losses(trainer)[0][name]
    assert losses(trainer)[-1]["loss"] < 0.8 * losses(trainer)[0]["loss"]


@trainers_that(lambda case: case.new_part_rate)
def test_a_new_part_has_its_own_learning_rate_under_the_same_schedule(case, tmp_path):
    rates = {"learning_rate": 1e-3, case.new_part_rate: 1e-1, "lr_scheduler_type": "linear", "weight_decay": 0.1}
    trainer = case.make(tmp_path, **rates)
    trainer.create_optimizer_and_scheduler(4)
    new, seen = {id(p) for p in new_parameters(trainer.model)}, set()
    for group in trainer.optimizer.param_groups:
        for parameter in group["params"]:
            assert group["lr"] == (1e-1 if id(parameter) in new else 1e-3)
            assert group["weight_decay"] == (0.1 if parameter.dim() > 1 else 0.0)
            seen.add(id(parameter))
    assert seen == {id(p) for p in trainer.model.parameters() if p.requires_grad}  # Marian's sines are fixed
    trainer.optimizer.step()
    trainer.lr_scheduler.step()
    assert {round(group["lr"], 6) for group in trainer.optimizer.param_groups} == {0.75e-1, 0.75e-3}


@every_trainer
def test_data_that_do_not_fit_are_refused_before_training_starts(case, tmp_path):
    row = {"input_ids": [[1, 2]], "labels": [[1, 2]], "attention_mask": [[1, 1]]}
    for change, told in (
        ({"input_ids": [[1, VOCAB + 3]]}, f"got {VOCAB + 3}"),
        ({"labels": [[VOCAB, 2]]}, f"labels must be token ids in .* got {VOCAB}"),
        *([] if "labels" in case.lacks else [({"labels": None}, "lacks labels among")]),
    ):
        columns = {name: column for name, column in {**row, **change}.items() if column is not None}
        with pytest.raises(ValueError, match=told):
            case.make(tmp_path, rows=Dataset.from_dict(columns))
    with pytest.raises(ValueError, match=told):
        case.make(tmp_path).evaluate(Dataset.from_dict(columns))
    with pytest.raises(ValueError, match="must have rows, got none"):
        case.make(tmp_path, rows=case.rows(2).select([]))


@trainers_that_owe("the steps of the plain trainer")
def test_ours_and_the_plain_trainer_take_the_same_steps(case, tmp_path):
    logged = []
    for plain in (False, True):
        trainer = case.make(tmp_path, plain=plain, max_steps=2)
        trainer.train()
        logged.append([entry["loss"] for entry in losses(trainer)])
    assert logged[0] == pytest.approx(logged[1], rel=1e-6)


@every_trainer
def test_a_trainer_that_nobody_holds_is_gone_at_once_with_its_model(case, tmp_path):
    gc.collect()
    gc.disable()  # which would find a cycle, some time later
    try:
        trainer = case.make(tmp_path, max_steps=1)
        trainer.train()
        trainer.evaluate()
        held = ref(trainer), ref(trainer.model)
        del trainer
        assert [one() for one in held] == [None, None]
    finally:
        gc.enable()


@every_trainer
def test_metrics_that_are_given_are_added_to_its_own(case, tmp_path):
    names = [f"eval_{name}" for name in ("loss", *case.metrics)]
    own, both = (
        case.make(tmp_path, compute_metrics=given, per_device_eval_batch_size=3).evaluate()
        for given in (None, lambda found: {"rows": len(found.predictions)})
    )
    assert [both[name] for name in names] == [own[name] for name in names]
    assert both["eval_rows"] >= 1 and "eval_rows" not in own


@every_trainer
def test_a_copy_of_a_trainer_evaluates_as_it_does(case, tmp_path):
    GradientState._reset_state()  # accelerate keeps what no copy has: the loader of a loop that an earlier test left
    trainer = case.make(tmp_path)
    names = [f"eval_{name}" for name in ("loss", *case.metrics)]
    expected = trainer.evaluate()
    for again in (copy.deepcopy(trainer), pickle.loads(pickle.dumps(trainer))):
        found = again.evaluate()
        assert [found[name] for name in names] == pytest.approx([expected[name] for name in names], rel=1e-5)


@every_trainer
def test_a_plain_evaluation_gives_the_loss_and_the_logits(case, tmp_path):
    seen = {}

    def count(predictions):
        seen["shape"] = predictions.predictions.shape
        return {"rows": len(predictions.label_ids)}

    metrics = case.make(tmp_path, plain=True, compute_metrics=count, per_device_eval_batch_size=3).evaluate()
    assert metrics["eval_loss"] > 0 and metrics["eval_rows"] == 7
    assert seen["shape"][0] == 7 and seen["shape"][2] >= VOCAB


@every_trainer
@plain_or_ours
def test_the_best_model_is_loaded_at_the_end(case, plain, tmp_path):
    options = {**STEPS, "eval_steps": 1, "save_steps": 1, "max_steps": 2}
    options |= {"load_best_model_at_end": True, "save_total_limit": 1}
    trainer = case.make(tmp_path, plain=plain, **options)
    trainer.train()
    name = f"eval_{trainer.args.metric_for_best_model}"
    evaluated = [entry[name] for entry in trainer.state.log_history if name in entry]
    assert len(evaluated) == 2 and trainer.state.best_metric == min(evaluated)
    best = type(trainer.model).from_pretrained(trainer.state.best_model_checkpoint)
    assert_same(weights(trainer.model), weights(best), rtol=0, atol=0)


@trainers_that(lambda case: case.arguments is not TargetTrainingArguments)
@pytest.mark.parametrize("kind", [TrainingArguments, type(None)])
def test_arguments_of_another_class_are_refused(case, kind, tmp_path):
    args = kind(str(tmp_path), use_cpu=True) if kind is TrainingArguments else None
    with pytest.raises(ValueError, match=f"args must be {case.arguments.__name__}, got {kind.__name__}"):
        case.trainer(model=case.model.make(), args=args)


@every_trainer
def test_smoothed_labels_are_refused_where_they_would_train_a_part_of_the_model(case, tmp_path):
    trainer = case.make(tmp_path, plain=True, label_smoothing_factor=0.1)
    before = weights(trainer.model)
    for run in (trainer.train, trainer.evaluate):
        with pytest.raises(ValueError, match="label_smoothing_factor"):
            run()
    assert_same(weights(trainer.model), before, rtol=0, atol=0)


@trainers_that(lambda case: "shift_labels" not in case.model.refuses)
def test_trainer_shifts_labels_that_it_smooths_where_it_may_use_the_next_token_alone(case, tmp_path):
    model, ids = case.model.make(), token_ids(2, 9)
    model.accepts_loss_kwargs = False
    trainer = case.make(tmp_path, model, plain=True, label_smoothing_factor=0.1)
    loss = trainer.compute_loss(model, {"input_ids": ids, "labels": ids})
    logits, targets = model(ids).logits[:, :-1], ids[:, 1:]
    expected = nn.functional.cross_entropy(logits.transpose(1, 2), targets, label_smoothing=0.1)
    torch.testing.assert_close(loss, expected)


@every_trainer
@plain_or_ours
def test_a_step_without_a_target_leaves_the_weights_as_they_are(case, plain, tmp_path):
    rows = case.rows(8).map(lambda row: {"labels": [IGNORED] * len(row["labels"])})
    trainer = case.make(tmp_path, rows=rows, plain=plain, max_steps=1, gradient_accumulation_steps=2)
    before = weights(trainer.model)
    trainer.train()
    assert [entry["loss"] for entry in losses(trainer)] == [0.0]
    assert_same(weights(trainer.model), before, rtol=0, atol=0)
