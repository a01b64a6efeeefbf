"""Each configuration of recipes/accelerate takes the steps of plain data parallelism, and saves, resumes and loads.

accelerate runs plain data parallelism on a CPU, whatever is asked for, and says nothing; `launched` prevents that.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from torch.distributed.tensor import DTensor
from transformers import Trainer, TrainerCallback

from hf_targets.backbones.weight_access import gathered, whole_tensor
from tests.model_case import remembered
from tests.model_cases import TRAINERS
from tests.tiny_models import make_dynamic_model, make_model
from tests.trainer_runs import assert_same, losses, run_processes, weights
from tests.training.launched import launch_on_two_nodes, launched, launched_variables

MODELS = {
    **{name: case.model.make for name, case in TRAINERS.items()},
    "multitoken/conditional": remembered(lambda: make_model("gpt2", target="conditional")),
    "phrases/untied": remembered(lambda: make_dynamic_model("llama")),
}
VARIANTS: dict[str, Any] = {  # of the trainer that the name begins with
    "multitoken/warmed": lambda: {"head_warmup_steps": 2},
    "multitoken/conditional": dict,
    "phrases/untied": dict,
    "phrases/streamed": lambda: {"rows": TRAINERS["phrases"].rows(32).to_iterable_dataset()},
}
CASES = [*VARIANTS, *(name for name in TRAINERS if name not in ("multitoken", "phrases"))]
LACKS = {
    "fsdp2": {"translation", "masked"},  # accelerate 1.15 shards Marian's and BERT's tied weights twice, plain ones too
    "zero2": {"multitoken/warmed"},  # DeepSpeed trains a model once
    "zero3": {"multitoken/warmed"},
}
BEST = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}
"""Of an evaluation loss that falls: the checkpoint before the last."""
AVERAGED: dict[str, dict[str, Any]] = {  # evaluated before steps, too, after which no checkpoint is written
    "masked_diffusion": {"ema_decay": 0.5, "eval_steps": 1, **BEST},
    "gaussian_diffusion": {"ema_decay": 0.5, "eval_steps": 1},
    "awd_lstm": {"average_from_start": True, "eval_steps": 1},
}
WITHOUT_AVERAGE = {
    "masked_diffusion": {"ema_decay": None},
    "gaussian_diffusion": {"ema_decay": None},
    "awd_lstm": {"nonmonotone_interval": None},
}
STEPS = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
SETTINGS = {"ddp_backend": "gloo", "optim": "adamw_torch", "adam_epsilon": 1e-3, "cosine_weight": 0.5, **STEPS}


def make_model_of(case: str) -> Any:
    return MODELS.get(case, MODELS[case.split("/")[0]])()


def make_trainer(configuration: str, case: str, folder: Path) -> Trainer:
    averaging = WITHOUT_AVERAGE if configuration == "zero3" else AVERAGED
    given = {**SETTINGS, **averaging.get(case, {}), **VARIANTS.get(case, dict)()}
    return TRAINERS[case.split("/")[0]].make(folder, make_model_of(case), **given)


def load(case: str, folder: Path) -> dict[str, torch.Tensor]:
    model = type(make_model_of(case)).from_pretrained(folder)
    with gathered(model):
        return weights(model)


class Averages(TrainerCallback):
    """Keeps the average of the weights after each step, and whether processes have shards of all weights of it."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.seen, self.are_sharded = trainer, [], []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        average = getattr(self.trainer, "_average", None)
        if average is not None:
            self.seen.append({name: whole_tensor(weight).clone() for name, weight in average.weights.items()})
            self.are_sharded += [isinstance(weight, DTensor) for weight in average.weights.values()]


def train(configuration: str, case: str, folder: Path, resume: str | None = None) -> dict[str, Any]:
    """Train; return what was logged, evaluated and averaged, how weights were shared, and the last ones."""
    trainer: Any = make_trainer(configuration, case, folder)
    averages = Averages(trainer)
    trainer.add_callback(averages)
    trainer.train(resume_from_checkpoint=resume)
    metrics = trainer.evaluate()
    trainer.save_model(str(folder))
    trainer.accelerator.wait_for_everyone()
    model = trainer.model
    return {
        "log": [{k: v for k, v in entry.items() if k.startswith(("loss", "grad_norm"))} for entry in losses(trainer)],
        "metrics": {name: value for name, value in metrics.items() if "perplexity" in name or "loss" in name},
        "averages": averages.seen,
        "averages_are_sharded": averages.are_sharded,
        "are_sharded": [isinstance(parameter, DTensor) for parameter in model.parameters()],
        "loaded": load(case, folder),  # here, where ZeRO-3 shards it
        "num_here": sum(parameter.numel() for parameter in model.parameters()),
        "zero_stage": trainer.deepspeed and trainer.deepspeed.zero_optimization_stage(),
        "weights": {name: whole_tensor(tensor).detach().clone() for name, tensor in model.state_dict().items()},
        "text": written(model) if case == "masked_diffusion" and configuration in ("ddp", "fsdp2") else None,
    }


def written(model: Any) -> list[list[int]]:
    """Return a text that a diffusion model writes."""
    return model.generate(max_length=6, num_steps=3, generator=torch.Generator().manual_seed(0)).tolist()


def train_all(configuration: str, folder: Path) -> dict[tuple[str, bool], dict[str, Any]]:
    """Train each case without a break, and (True) from its checkpoint after two of four steps."""
    found = {}
    for case in CASES:
        make_model_of(case)  # further ones are copies of it, where ZeRO-3 would draw other numbers
    with launched(configuration):
        for case in CASES:
            if case not in LACKS.get(configuration, ()):
                place = folder / case
                found[case, False] = train(configuration, case, place / "whole")
                found[case, True] = train(configuration, case, place / "again", f"{place}/whole/checkpoint-2")
    return found


_RUN = """
import sys, torch
from pathlib import Path
from tests.training.test_sharding import train_all

results = train_all(sys.argv[2], Path(sys.argv[1]))
if torch.distributed.get_rank() == 0:
    torch.save(results, f"{sys.argv[1]}/results.pt")
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a function that gives the folder and the results of a configuration: all cases, in one start.

    Workers of pytest share them.
    """
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root

    @cache
    def run(configuration: str) -> tuple[Path, dict]:
        folder = root / f"sharding-{configuration}"
        with FileLock(f"{folder}.lock"):
            if not (folder / "results.pt").exists():
                run_processes(_RUN, folder, configuration)
        return folder, torch.load(folder / "results.pt", weights_only=False)

    return run


def assert_close(ours: list[dict] | dict, theirs: list[dict] | dict) -> None:
    pairs = zip(ours, theirs, strict=True) if isinstance(ours, list) else [(ours, theirs)]
    for one, other in pairs:
        assert one == pytest.approx(other, rel=1e-4)


def assert_takes_the_steps_of(reference: dict[str, Any], found: dict[str, Any]) -> None:
    names = found["log"][0].keys() - ({"grad_norm"} if found["zero_stage"] else set())  # DeepSpeed's is not logged
    assert len(found["log"]) == 4
    assert_close(*([{name: entry[name] for name in names} for entry in one["log"]] for one in (found, reference)))


@pytest.mark.sharded
@pytest.mark.parametrize("configuration", ["ddp", "fsdp2", "zero2", "zero3"])
def test_a_configuration_takes_the_steps_of_whole_weights_and_its_models_are_saved_whole(configuration, trained):
    (folder, results), (plain_folder, plain) = trained(configuration), trained("ddp")
    assert {case for case, _ in results} == set(CASES) - LACKS.get(configuration, set())
    for case, is_resumed in results:
        found, expected = results[case, is_resumed], plain[case, False]
        assert set(found["are_sharded"]) == {configuration == "fsdp2"}
        assert found["zero_stage"] == {"zero2": 2, "zero3": 3}.get(configuration)
        assert (found["num_here"] == 0) == (configuration == "zero3")
        assert_takes_the_steps_of(expected, found)  # a resumed one's log goes on from the checkpoint's
        saved = load(case, folder / case / ("again" if is_resumed else "whole"))
        assert_same(found["loaded"], saved, rtol=0, atol=0)
        if configuration != "zero3":
            assert_same(saved, found["weights"], rtol=0, atol=0)
        if configuration != "zero3" or case not in AVERAGED:
            assert_close(found["metrics"], expected["metrics"])
            assert found["text"] in (None, expected["text"])
            assert_same(saved, load(case, plain_folder / case / "whole"), rtol=1e-3, atol=1e-4)


@pytest.mark.sharded
@pytest.mark.parametrize("configuration", ["fsdp2", "zero2"])
@pytest.mark.parametrize("case", AVERAGED)
def test_averages_of_shards_are_those_of_whole_weights_in_training_and_in_checkpoints(case, configuration, trained):
    (folder, results), (plain_folder, plain) = trained(configuration), trained("ddp")
    for is_resumed in (False, True):
        found, expected = (one[case, is_resumed] for one in (results, plain))
        assert set(found["averages_are_sharded"]) == {configuration == "fsdp2"}
        assert len(found["averages"]) == len(expected["averages"]) == (2 if is_resumed else 4)
        for ours, theirs in zip(found["averages"], expected["averages"], strict=True):
            assert_same(ours, theirs, rtol=1e-3, atol=1e-5)
    ours, theirs = (load(case, one / case / "whole" / "checkpoint-2") for one in (folder, plain_folder))
    assert_same(ours, theirs, rtol=1e-3, atol=1e-5)
    average = results[case, False]["averages"][1]
    assert_same({name: ours[name] for name in average}, average, rtol=0, atol=0)


_NODE = """
import sys, torch
from pathlib import Path
from tests.training.test_sharding import train

folder, case = Path(sys.argv[1]), "masked_diffusion"
results = {False: train("ddp", case, folder / "whole")}
results[True] = train("ddp", case, folder / "again", str(folder / "whole" / "checkpoint-2"))
torch.save(results, folder / f"{torch.distributed.get_rank()}.pt")
"""


@pytest.mark.sharded
def test_two_machines_take_the_steps_of_two_processes_of_one(trained, tmp_path):
    """Each group of processes is started by a launcher of its own, as on two machines."""
    launch_on_two_nodes(_NODE, tmp_path)
    expected = trained("ddp")[1]
    for rank in range(2):
        for is_resumed, found in torch.load(tmp_path / f"{rank}.pt", weights_only=False).items():
            assert_close(found["log"], expected["masked_diffusion", is_resumed]["log"])
            assert_close(found["metrics"], expected["masked_diffusion", is_resumed]["metrics"])
            assert_same(found["weights"], expected["masked_diffusion", is_resumed]["weights"], rtol=1e-4, atol=1e-6)


@pytest.mark.sharded
def test_processes_on_cpus_and_on_gpus_differ_in_precision_alone():
    assert launched_variables("cpu_ddp") == launched_variables("ddp")
