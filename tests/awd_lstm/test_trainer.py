import pytest
import torch
from transformers import TrainerCallback

from hf_targets import AwdLstmForCausalLM, AwdLstmTrainingArguments
from hf_targets.awd_lstm.trainer import no_longer_better
from hf_targets.training.averaging import AVERAGING_NAME
from tests.awd_lstm.models import make_awd_lstm
from tests.awd_lstm.training import lone_nll, make_trainer, text_blocks
from tests.tiny_backbones import make_backbone
from tests.trainer_runs import assert_same, losses, run_processes, weights

EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
WORSE = {"nonmonotone_interval": 1, "learning_rate": 0.2, "rows": text_blocks(32, first=11), **EVALUATED}
"""A training on other words than those of the evaluations, which get worse from step to step."""


class Steps(TrainerCallback):
    """Keeps the weights after each step, and the learning rate of each."""

    def __init__(self):
        self.weights, self.rates = [], []

    def on_step_end(self, *args, model, optimizer, **kwargs):
        self.weights.append(weights(model))
        self.rates.append(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize("eval_streams", [1, 3, 10, 1000])
def test_an_evaluation_reads_each_row_without_a_break(eval_streams, tmp_path):
    trainer = make_trainer(tmp_path, eval_streams=eval_streams, per_device_eval_batch_size=2)
    found, blocks = trainer.evaluate(), text_blocks(7, seed=1)
    nll = lone_nll(trainer.model, blocks, min(eval_streams, 7 * 13))
    assert found["eval_loss"] == pytest.approx(nll.item() / (7 * 13), rel=1e-5)
    assert found["eval_perplexity"] == pytest.approx((nll / (7 * 13)).exp().item(), rel=1e-4)
    assert found["eval_word_perplexity"] == pytest.approx((nll / 28).exp().item(), rel=1e-4)
    predicted = trainer.predict(text_blocks(5))
    assert predicted.metrics["test_loss"] > 0


def test_a_training_reads_each_row_without_a_break_and_begins_each_epoch_anew(tmp_path):
    trainer = make_trainer(tmp_path, learning_rate=0.0, max_steps=-1, num_train_epochs=2, logging_steps=1)
    trainer.train()
    lengths = [batch["labels"].ne(-100).sum().item() for batch in trainer.get_train_dataloader()]
    nll = lone_nll(make_awd_lstm(), text_blocks(32), 4).item()
    log = [entry["loss_next_token"] for entry in losses(trainer)]
    assert len(log) == 2 * len(lengths)
    # the second epoch has the segments in another order, so their losses are not known one by one
    sampler = trainer.get_train_dataloader().batch_sampler
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        counts = [4 * (end - begin) for ((begin, end, _),) in sampler]
        part = log[epoch * len(counts) : (epoch + 1) * len(counts)]
        assert sum(count * loss for count, loss in zip(counts, part, strict=True)) == pytest.approx(nll, rel=1e-4)


def test_gradients_do_not_flow_into_the_segment_before(tmp_path):
    trainer = make_trainer(tmp_path)
    batches = [trainer._prepare_inputs(batch) for batch in list(trainer.get_train_dataloader())[:2]]
    for batch in batches:
        trainer.model.zero_grad()
        trainer.compute_loss(trainer.model.train(), batch).backward()  # a second backward pass would be an error
    assert all(not layer.keys.grad_fn or layer.keys.requires_grad for layer in trainer._states[0].layers)


def test_the_rate_of_a_step_is_in_proportion_to_its_segment(tmp_path):
    steps = Steps()
    trainer = make_trainer(tmp_path, callbacks=[steps], weight_decay=0.0, max_grad_norm=0.0, max_steps=6)
    begin = weights(trainer.model)
    gradients = []
    trainer.add_callback(Gradients(gradients))
    lengths = [end - begin for ((begin, end, _),) in trainer.get_train_dataloader().batch_sampler][:6]
    trainer.train()
    assert len(set(lengths)) > 1
    for length, before, after, gradient in zip(
        lengths, [begin, *steps.weights], steps.weights, gradients, strict=False
    ):
        for name in gradient:
            expected = before[name] - 1e-2 * length / 8 * gradient[name]
            torch.testing.assert_close(after[name], expected, rtol=1e-5, atol=1e-7)
    assert set(steps.rates) == {1e-2}


class Gradients(TrainerCallback):
    """Keeps the gradients of each step."""

    def __init__(self, seen):
        self.seen = seen

    def on_pre_optimizer_step(self, *args, model, **kwargs):
        self.seen.append({name: p.grad.clone() for name, p in model.named_parameters()})


def test_all_parameters_decay(tmp_path):
    trainer = make_trainer(tmp_path, weight_decay=0.1)
    groups = trainer.create_optimizer().param_groups
    decayed = {id(p) for group in groups for p in group["params"] if group["weight_decay"] == 0.1}
    assert decayed == {id(p) for p in trainer.model.parameters()}


@pytest.mark.parametrize("interval", [1, 2, 5])
def test_the_trigger_is_that_of_the_published_program(interval):
    values = torch.rand(40, generator=torch.Generator().manual_seed(interval)).tolist()
    best_val_loss = []
    for number, loss in enumerate(values, start=1):
        published = len(best_val_loss) > interval and loss > min(best_val_loss[:-interval])
        assert no_longer_better(values[:number], interval) == published
        best_val_loss.append(loss)


def evaluations(trainer):
    return [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]


def test_the_mean_begins_where_evaluations_get_no_better_and_is_what_is_left(tmp_path):
    steps = Steps()
    trainer = make_trainer(tmp_path, callbacks=[steps], max_steps=10, **WORSE)
    trainer.train()
    seen = evaluations(trainer)
    begun = 3
    assert [no_longer_better(seen[:n], 1) for n in (1, 2, 3)] == [False, False, True]
    for name, found in weights(trainer.model).items():
        expected = torch.stack([one[name] for one in steps.weights[begun:]]).mean(dim=0)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for step in range(1, 11):
        folder = tmp_path / f"checkpoint-{step}"
        assert (folder / AVERAGING_NAME).exists() == (step >= begun)
        model = AwdLstmForCausalLM.from_pretrained(folder)
        nll = lone_nll(model, text_blocks(7, seed=1), 10)
        assert nll.item() / (7 * 13) == pytest.approx(seen[step - 1], rel=1e-4)


@pytest.mark.parametrize("step", [1, 8])
def test_a_resumed_run_knows_whether_the_mean_has_begun(step, tmp_path):
    whole = make_trainer(tmp_path / "whole", max_steps=10, **WORSE)
    whole.train()
    resumed = make_trainer(tmp_path / "resumed", max_steps=10, **WORSE)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
    assert_same(weights(whole.model), weights(resumed.model), rtol=0, atol=0)
    assert evaluations(whole) == evaluations(resumed)


def test_finetuning_averages_from_the_first_step_and_stops_where_the_mean_would_have_begun(tmp_path):
    steps = Steps()
    trainer = make_trainer(tmp_path, callbacks=[steps], max_steps=10, average_from_start=True, **WORSE)
    trainer.train()
    assert len(evaluations(trainer)) == len(steps.weights) == 3
    for name, found in weights(trainer.model).items():
        torch.testing.assert_close(
            found, torch.stack([one[name] for one in steps.weights]).mean(dim=0), rtol=1e-4, atol=1e-5
        )


def test_an_evaluation_after_training_begins_no_mean(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=10, **WORSE)
    trainer.train()
    before = weights(trainer.model)
    trainer.evaluate()
    assert trainer._average is None
    assert_same(before, weights(trainer.model), rtol=0, atol=0)


def test_a_finetuning_that_came_to_its_end_is_not_trained_on_after_a_kill(tmp_path):
    def run(resume):
        trainer = make_trainer(tmp_path, max_steps=10, average_from_start=True, **WORSE)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole, again = run(resume=None), run(resume=True)
    assert whole.state.global_step == again.state.global_step == 3
    assert_same(weights(whole.model), weights(again.model), rtol=1e-5, atol=1e-7)


_TWO = """
import sys, torch
from pathlib import Path
from tests.awd_lstm.training import make_trainer
from tests.trainer_runs import weights

folder, found = Path(sys.argv[1]), []
options = {"ddp_backend": "gloo", "per_device_train_batch_size": 2, "max_steps": 8}
for name, resumed in (("whole", None), ("again", str(folder / "whole" / "checkpoint-3"))):
    trainer = make_trainer(folder / name, save_strategy="steps", save_steps=3, **options)
    trainer.train(resume_from_checkpoint=resumed)
    found.append((weights(trainer.model), trainer.state.log_history[-2]["loss"]))
torch.save(found, folder / f"{trainer.args.process_index}.pt")
"""


def test_two_processes_go_on_each_with_the_states_of_its_rows(tmp_path):
    run_processes(_TWO, tmp_path)
    for process in range(2):
        (whole, loss), (again, resumed) = torch.load(tmp_path / f"{process}.pt", weights_only=False)
        assert_same(whole, again, rtol=0, atol=0)
        assert loss == resumed


@pytest.mark.parametrize("changed", [{"per_device_train_batch_size": 2}, {"gradient_accumulation_steps": 2}])
def test_a_checkpoint_of_other_rows_is_not_resumed(changed, tmp_path):
    options = {"save_strategy": "steps", "save_steps": 2}
    make_trainer(tmp_path, **options).train()
    trainer = make_trainer(tmp_path, **{**options, **changed})
    with pytest.raises(ValueError, match="has no state"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    (tmp_path / "checkpoint-2" / "carried_state_0.safetensors").unlink()
    with pytest.raises(ValueError, match="save_only_model"):
        make_trainer(tmp_path, **options).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_the_defaults_are_the_published_ones(tmp_path):
    args = AwdLstmTrainingArguments(output_dir=str(tmp_path), report_to="none", use_cpu=True)
    assert (args.learning_rate, args.max_grad_norm, args.bptt, args.weight_decay) == (30.0, 0.25, 70, 1.2e-6)
    assert args.optim == "sgd" and args.lr_scheduler_type == "constant"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"model": make_backbone("gpt2")}, "GPT2LMHeadModel"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({"eval_dataset": {"a": text_blocks(2), "b": text_blocks(2)}}, "one evaluation text"),
        ({"rows": text_blocks(32).shuffle(seed=0)}, "must be one text"),
        ({"rows": text_blocks(1), "per_device_train_batch_size": 14}, "14 rows"),
        ({"bptt": 0}, "bptt"),
        ({"nonmonotone_interval": 0}, "nonmonotone_interval"),
        ({"average_from_start": True, "nonmonotone_interval": None}, "nonmonotone_interval"),
    ],
)
def test_what_cannot_be_trained_is_refused(wrong, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        make_trainer(tmp_path, **wrong).train()
