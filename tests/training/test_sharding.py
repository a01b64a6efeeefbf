"""Training with sharded weights (FSDP2) takes the steps of plain data parallelism, and saves whole models.

accelerate runs plain data parallelism on a CPU, whatever is asked for, and says nothing: the runs here make it believe
that the processes have an accelerator each, and assert that the weights are DTensors.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, Trainer

from hf_targets.training.averaging import WeightAverage
from tests.masked_diffusion import training as diffusion_training
from tests.masked_diffusion.models import make_mdlm
from tests.multitoken import test_trainer as test_multitoken
from tests.phrases import test_trainer as test_phrases
from tests.tiny_models import make_dynamic_model, make_model
from tests.trainer_runs import assert_same, losses, run_processes, weights

CASES = {
    "conditional_tied": lambda: make_model("gpt2", target="conditional"),
    "apart_tied": lambda: make_model("gpt2"),
    "phrases_untied": lambda: make_dynamic_model("llama"),
    "mdlm_curves": lambda: make_mdlm("curves"),
}

RESUMED = ("apart_tied", "mdlm_curves")


def make_trainer(case: str, folder: Path, **arguments) -> Trainer:
    options = {"ddp_backend": "gloo", "report_to": "none", "save_strategy": "steps", "save_steps": 2, **arguments}
    if case.startswith("mdlm"):
        rows = diffusion_training.masked_blocks(32)
        return diffusion_training.make_trainer(folder, CASES[case](), rows, ema_decay=None, **options)
    if case.startswith("phrases"):
        return test_phrases.make_trainer(folder, CASES[case](), kind=test_phrases.InOrder, **options)
    if case == "apart_tied":
        options |= {"cosine_weight": 5.0, "head_warmup_steps": 2}
    return test_multitoken.make_trainer(folder, CASES[case](), **options)


@contextmanager
def believed_accelerators() -> Iterator[None]:
    """Let accelerate take processes on CPUs for processes with an accelerator each, which is where it shards."""
    original = PartialState.__init__

    def init(self, *args, **kwargs) -> None:
        original(self, *args, **kwargs)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU

    PartialState.__init__ = init
    try:
        yield
    finally:
        PartialState.__init__ = original


def train(case: str, folder: Path, *, resume_from: str | None = None, **arguments):
    trainer = make_trainer(case, folder, **arguments)
    trainer.train(resume_from_checkpoint=resume_from)
    sharded = [isinstance(parameter, DTensor) for parameter in trainer.model.parameters()]
    logged = [{k: v for k, v in entry.items() if k.startswith(("loss", "grad_norm"))} for entry in losses(trainer)]
    metrics = trainer.evaluate()
    chosen = {name: value for name, value in metrics.items() if "perplexity" in name or "loss" in name}
    return trainer, logged, chosen, sharded


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def train_both_ways(case: str, folder: Path) -> tuple[Trainer, dict]:
    """Return what plain data parallelism and sharding logged and evaluated, some resumed after two steps."""
    results = {"plain": train(case, folder / "plain")[1:]}
    sharding = {"fsdp": True, "fsdp_config": {"fsdp_version": 2, "state_dict_type": "FULL_STATE_DICT"}}
    with believed_accelerators():
        trainer, *results["sharded"] = train(case, folder / "sharded", **sharding)
        if case.startswith("mdlm"):
            with pytest.raises(ValueError, match="weights of this model are sharded or offloaded"):
                WeightAverage(trainer.model, 0.9)
        trainer.save_model(str(folder / "sharded"))
        results["weights"] = {name: whole(tensor) for name, tensor in trainer.model.state_dict().items()}
        if case in RESUMED:
            checkpoint = str(folder / "sharded/checkpoint-2")
            _, *results["resumed"] = train(case, folder / "resumed", resume_from=checkpoint, **sharding)
    return trainer, results


def train_with_zero_3(case: str, folder: Path) -> tuple[Trainer, dict]:
    """Return what DeepSpeed's ZeRO-3 logged and evaluated, no weight too small to be sharded."""
    stage = {"stage": 3, "stage3_param_persistence_threshold": 0}
    sizes = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
    deepspeed = {
        "zero_optimization": stage,
        "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True,
        **sizes,
    }
    results = {"plain": train(case, folder / "plain", save_strategy="no")[1:]}
    trainer, *results["sharded"] = train(case, folder / "sharded", deepspeed=deepspeed, save_strategy="no")
    results["num_here"] = sum(parameter.numel() for parameter in trainer.model.parameters())
    return trainer, results


_TWO = """
import sys, torch
from pathlib import Path
from tests.training.test_sharding import CASES, train_both_ways

for case in CASES:
    trainer, results = train_both_ways(case, Path(sys.argv[1]) / case)
    if trainer.is_world_process_zero():
        torch.save(results, f"{sys.argv[1]}/{case}.pt")
"""


_ZERO = """
import sys, torch
from pathlib import Path
from tests.training.test_sharding import train_with_zero_3

trainer, results = train_with_zero_3(sys.argv[2], Path(sys.argv[1]))
if trainer.is_world_process_zero():
    torch.save(results, f"{sys.argv[1]}/results.pt")
"""


def assert_close(ours: list | dict, theirs: list | dict) -> None:
    pairs = zip(ours, theirs, strict=True) if isinstance(ours, list) else [(ours, theirs)]
    for one, other in pairs:
        assert one == pytest.approx(other, rel=1e-4)


@pytest.mark.sharded
def test_sharded_weights_take_the_steps_of_whole_ones_and_are_saved_whole(tmp_path):
    run_processes(_TWO, tmp_path)  # all cases in one run: most of its time is its start
    for case in CASES:
        check_case(case, tmp_path / case, torch.load(tmp_path / f"{case}.pt", weights_only=False))


@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.parametrize("case", CASES)  # a run for each: its configuration stays on in a process
def test_zero_3_takes_the_steps_of_whole_weights(case, tmp_path, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    run_processes(_ZERO, tmp_path, case)
    results = torch.load(tmp_path / "results.pt", weights_only=False)
    (plain, plain_metrics, _), (sharded, metrics, _) = results["plain"], results["sharded"]
    assert results["num_here"] == 0
    for one, other in zip(sharded, plain, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
    assert_close(metrics, plain_metrics)


def check_case(case: str, folder: Path, results: dict) -> None:
    plain, plain_metrics, are_sharded = results["plain"]
    assert are_sharded and not any(are_sharded)
    sharded, metrics, are_sharded = results["sharded"]
    assert all(are_sharded)
    assert len(plain) == 4
    assert_close(sharded, plain)
    assert_close(metrics, plain_metrics)
    if case in RESUMED:
        resumed, resumed_metrics, are_sharded = results["resumed"]
        assert all(are_sharded)
        assert_close(resumed, sharded)  # its log goes on from the checkpoint's
        assert_close(resumed_metrics, metrics)
    auto_class = AutoModelForMaskedLM if case.startswith("mdlm") else AutoModelForCausalLM
    assert_same(weights(auto_class.from_pretrained(folder / "sharded")), results["weights"], rtol=0, atol=0)
