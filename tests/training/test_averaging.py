from contextlib import nullcontext

import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import TrainerCallback

from hf_targets.masked_diffusion.model import MdlmForMaskedDiffusion
from hf_targets.maths.losses import IGNORED
from hf_targets.training.averaging import AVERAGING_NAME, AveragingCallback, WeightAverage
from tests.masked_diffusion.training import bound, make_trainer
from tests.memory import realigned
from tests.trainer_runs import assert_same, losses, weights


def make_model(dtype=torch.float32) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2, bias=False)).to(dtype)
    model[1].weight.requires_grad = False
    return model


def take_step(model) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))


@settings(max_examples=10)
@given(decay=st.floats(0, 0.999), steps=st.integers(1, 20), seed=st.integers(0, 99))
def test_the_average_is_the_recursion_with_a_decay_that_warms_up(decay, steps, seed):
    torch.manual_seed(seed)
    model = make_model()
    average = WeightAverage(model, decay)
    expected = {name: weight.double() for name, weight in weights(model).items() if name != "1.weight"}
    for n in range(1, steps + 1):
        take_step(model)
        average.update()
        d = min(decay, (1 + n) / (10 + n))
        expected = {name: d * old + (1 - d) * weights(model)[name] for name, old in expected.items()}
    assert_same(average.weights, {name: weight.float() for name, weight in expected.items()}, rtol=1e-4, atol=1e-5)


@settings(max_examples=10)
@given(steps=st.integers(0, 20), seed=st.integers(0, 99))
def test_the_mean_is_of_the_weights_after_each_step_and_before_one_it_is_the_weights(steps, seed):
    torch.manual_seed(seed)
    model = make_model()
    average, seen = WeightAverage(model, None), []
    for _ in range(steps):
        take_step(model)
        average.update()
        seen.append(weights(model))
    seen = seen or [weights(model)]
    for name, found in average.weights.items():
        torch.testing.assert_close(found, torch.stack([one[name] for one in seen]).double().mean(dim=0).float())


def test_small_steps_of_half_precision_weights_are_not_lost():
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    nn.init.ones_(model.weight)
    average = WeightAverage(model, 0.9999)
    average.num_updates = 10**6  # past the warm-up
    nn.init.constant_(model.weight, 1.0078125)
    for _ in range(10):
        average.update()
    assert average.weights["weight"].dtype == torch.float32
    assert average.weights["weight"].item() == pytest.approx(1 + 0.0078125 * (1 - 0.9999**10), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_applied_weights_go_back_to_the_bit_even_after_an_error(dtype):
    model = make_model(dtype)
    average = WeightAverage(model, 0.5)
    for _ in range(3):
        take_step(model)
        average.update()
    raw = weights(model)
    frozen = model[1].weight
    with pytest.raises(RuntimeError, match="on purpose"), average.applied():
        for name, parameter in model.named_parameters():
            if parameter is not frozen:
                assert torch.equal(parameter, average.weights[name].to(dtype))
                assert not torch.equal(parameter, raw[name])
        assert torch.equal(frozen, raw["1.weight"])
        with average.applied():  # neither applies anew nor puts back, and so keeps no copy of the weights
            model[0].weight.detach().zero_()
        assert not model[0].weight.any()
        raise RuntimeError("on purpose")
    assert_same(weights(model), raw, rtol=0, atol=0)


@pytest.mark.parametrize("has_raw", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_average_goes_on_from_its_file_and_that_of_the_model(dtype, has_raw, tmp_path):
    model = make_model(dtype)
    average = WeightAverage(model, 0.9)
    take_step(model)
    average.update()
    average.save(tmp_path / "a.safetensors", has_raw=has_raw)
    again = make_model(dtype)
    with average.applied() if has_raw else nullcontext():
        again.load_state_dict(model.state_dict())
    resumed = WeightAverage(again, 0.9)
    resumed.load(tmp_path / "a.safetensors")
    for _ in range(3):
        torch.manual_seed(1)
        take_step(model)
        torch.manual_seed(1)
        take_step(again)
        average.update()
        resumed.update()
    assert resumed.num_updates == 4
    assert_same(weights(again), weights(model), rtol=0, atol=0)
    assert_same(resumed.weights, average.weights, rtol=0, atol=0)


def test_a_file_of_another_model_or_a_broken_one_is_refused_and_changes_nothing(tmp_path):
    model, file = make_model(), tmp_path / "a.safetensors"
    average = WeightAverage(model, 0.9)
    before = weights(model)
    average.save(file)
    tensors = load_file(file)
    for change, says in (
        ({"raw.2.weight": None}, "missing: raw.2.weight"),
        ({"raw.other": torch.zeros(1)}, "not in the model: raw.other"),
        ({"raw.2.weight": torch.zeros(3, 3)}, "of another shape: raw.2.weight"),
    ):
        save_file({name: tensor for name, tensor in {**tensors, **change}.items() if tensor is not None}, file)
        with pytest.raises(ValueError, match=says):
            average.load(file)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match="is not a whole file"):
        average.load(file)
    assert_same(weights(model), before, rtol=0, atol=0)


def test_weights_that_are_elsewhere_have_no_average():
    partitioned = make_model()
    partitioned[0].weight.ds_id = 0  # as DeepSpeed's ZeRO-3 marks them
    for model in (partitioned, make_model().to("meta")):
        with pytest.raises(ValueError, match="with FSDP2, ZeRO-2 or plain data parallelism"):
            WeightAverage(model, 0.9)


class Optimizer:
    step_was_skipped = False


def test_a_skipped_step_is_not_averaged():
    model, callback, optimizer = make_model(), AveragingCallback(0.9), Optimizer()
    callback.on_train_begin(model=model)
    callback.on_step_end(optimizer=optimizer)
    optimizer.step_was_skipped = True
    callback.on_step_end(optimizer=optimizer)
    assert callback.average.num_updates == 1


class Weights(TrainerCallback):
    """Keeps the model's weights as they are after each step."""

    def __init__(self):
        self.seen = []

    def on_step_end(self, *args, model, **kwargs):
        self.seen.append(weights(model))


def test_the_model_ends_with_the_average_of_the_weights_that_training_without_one_has(tmp_path):
    plain = make_trainer(tmp_path, ema_decay=None, callbacks=[Weights()])
    expected = weights(plain.model)
    plain.train()
    steps = next(one for one in plain.callback_handler.callbacks if isinstance(one, Weights)).seen
    for n, step in enumerate(steps, start=1):
        decay = min(0.25, (1 + n) / (10 + n))
        expected = {name: decay * old + (1 - decay) * step[name] for name, old in expected.items()}
    averaged = make_trainer(tmp_path, ema_decay=0.25)
    averaged.train()
    assert losses(averaged) == losses(plain)
    assert_same(weights(averaged.model), expected)
    assert not torch.allclose(expected["backbone.vocab_embed.weight"], steps[-1]["backbone.vocab_embed.weight"])


def test_an_evaluation_that_fails_puts_the_raw_weights_back(tmp_path):
    trainer = make_trainer(tmp_path, ema_decay=0.5)
    raw = []

    class Fails(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            raw.append(weights(trainer.model))
            with pytest.raises(ValueError, match="at least one target"):
                trainer.evaluate(Dataset.from_dict({"input_ids": [[1, 2]], "labels": [[IGNORED] * 2]}))
            assert_same(weights(trainer.model), raw[-1], rtol=0, atol=0)
            with trainer.averaged_weights():
                assert not torch.equal(next(trainer.model.parameters()), next(iter(raw[-1].values())))

    trainer.add_callback(Fails())
    trainer.train()
    assert len(raw) == 4


def test_what_measures_a_model_in_training_finds_its_averaged_weights(tmp_path):
    seen = []

    class Measures(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            with trainer.averaged_weights():
                averaged, expected = weights(trainer.model), bound(trainer.model, trainer.eval_dataset).nelbo
            assert trainer.predict(trainer.eval_dataset).metrics["test_nelbo"] == pytest.approx(expected, rel=1e-5)
            trainer.evaluate()
            assert_same(seen[-1], averaged, rtol=0, atol=0)
            assert not torch.equal(weights(trainer.model)["backbone.vocab_embed.weight"], next(iter(averaged.values())))

        def on_evaluate(self, *args, model, **kwargs):
            seen.append(weights(model))

    trainer = make_trainer(tmp_path, ema_decay=0.5, max_steps=2, test_draws=1, callbacks=[Measures()])
    trainer.train()
    assert len(seen) == 2


def test_after_a_training_that_broke_off_another_begins_an_average_of_its_own(tmp_path):
    class BreaksOff(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            raise KeyboardInterrupt

    trainer = make_trainer(tmp_path, save_strategy="steps", save_steps=4)
    trainer.add_callback(BreaksOff)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.remove_callback(BreaksOff)
    trainer.train()
    assert load_file(tmp_path / "checkpoint-4" / AVERAGING_NAME)["num_updates"] == 4


def test_a_checkpoint_is_the_model_whose_numbers_were_logged_and_the_best_is_what_training_ends_with(tmp_path):
    trainer = make_trainer(
        tmp_path,
        ema_decay=0.5,
        learning_rate=0.3,  # the last step is not the best
        save_strategy="steps",
        save_steps=1,
        eval_strategy="steps",
        eval_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="perplexity",
        greater_is_better=False,
    )
    trainer.train()
    logged = {e["step"]: e["eval_nelbo"] for e in trainer.state.log_history if "eval_nelbo" in e}
    best = min(logged, key=logged.__getitem__)
    assert best < 4 and trainer.state.best_model_checkpoint.endswith(f"-{best}")
    for step, nelbo in logged.items():
        model = realigned(MdlmForMaskedDiffusion.from_pretrained(tmp_path / f"checkpoint-{step}"))
        assert bound(model, trainer.eval_dataset).nelbo == pytest.approx(nelbo, rel=1e-5)
        if step == best:
            assert_same(weights(trainer.model), weights(model), rtol=0, atol=0)
    assert trainer.evaluate()["eval_nelbo"] == pytest.approx(logged[best], rel=1e-5)
    trainer.save_model(tmp_path / "final")
    final = MdlmForMaskedDiffusion.from_pretrained(tmp_path / "final")
    assert_same(weights(final), weights(trainer.model), rtol=0, atol=0)
    assert not (tmp_path / "final" / AVERAGING_NAME).exists()


def test_without_an_average_training_goes_on_from_the_raw_weights_of_a_checkpoint_that_has_one(tmp_path, caplog):
    options = {"save_strategy": "steps", "save_steps": 2, "optim": "adamw_torch"}
    make_trainer(tmp_path / "averaged", ema_decay=0.9, **options).train()
    plain = make_trainer(tmp_path / "plain", ema_decay=None, **options)
    plain.train()
    resumed = make_trainer(tmp_path / "resumed", ema_decay=None, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "averaged" / "checkpoint-2"))
    assert_same(weights(resumed.model), weights(plain.model), rtol=0, atol=0)
    begun = make_trainer(tmp_path / "begun", ema_decay=0.9, **options)
    begun.train(resume_from_checkpoint=str(tmp_path / "plain" / "checkpoint-2"))
    assert f"has no {AVERAGING_NAME}" in caplog.text
    assert load_file(tmp_path / "begun" / "checkpoint-4" / AVERAGING_NAME)["num_updates"] == 2
