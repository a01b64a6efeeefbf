"""A Trainer's checkpoints: the newest whole one, the best ones, and the mean of their weights."""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# (a mixin: Trainer has the model)

import json
import logging
import math
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, sort_checkpoints
from transformers.utils import SAFE_WEIGHTS_NAME

from hf_targets.backbones.checkpoint import listed
from hf_targets.backbones.published import read_tensors

logger = logging.getLogger(__name__)


def newest_checkpoint(folder: str | Path) -> str | None:
    """Return the newest whole checkpoint in a Trainer's output folder, None if there is none.

    Trainer writes its own state last: a checkpoint without it was broken off while it was saved. One that lacks random
    states of other processes is taken only if all do, as where there were fewer processes.
    """
    found = []
    for checkpoint in map(Path, reversed(sort_checkpoints(str(folder)))):
        try:
            json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count == 1 or len(list(checkpoint.glob("rng_state_*.pth"))) >= count:
            return str(checkpoint)
        found.append(str(checkpoint))
    return found[0] if found else None


class KeepsUseCache:
    """Saves a Trainer's model with `use_cache` as it was before Trainer turned it off; write it before the Trainer."""

    def __init__(self, model: Any = None, *args: Any, **kwargs: Any) -> None:
        self._use_cache = getattr(getattr(model, "config", None), "use_cache", None)
        super().__init__(model, *args, **kwargs)

    def _save(self, *args: Any, **kwargs: Any) -> None:
        config: Any = getattr(self.model, "config", None)
        if not hasattr(config, "use_cache") or self._use_cache is None:
            return super()._save(*args, **kwargs)
        in_training, config.use_cache = config.use_cache, self._use_cache
        try:
            super()._save(*args, **kwargs)
        finally:
            config.use_cache = in_training


def best_checkpoints(
    folder: Path, count: int, *, metric: str = "perplexity", greater_is_better: bool = False
) -> list[Path]:
    """Return the checkpoints of a run's folder whose evaluation had the best metric, the best first.

    Args:
        metric, greater_is_better: As in the training's arguments, `metric_for_best_model` and `greater_is_better`.
    Raises:
        ValueError: If none was evaluated, or `count` is below 1.
    Warns: If there are fewer than `count`, which are returned: a training has come to its end.
    """
    found = _best_first(folder, metric, greater_is_better)
    _check_number(found, count, folder)
    return found[:count]


def _check_number(found: list[Path], count: int, folder: Path) -> None:
    if not found or count < 1:
        raise ValueError(f"{folder} has {len(found)} checkpoints for the mean of {count}; save more often")
    if len(found) < count:
        told = "%s has %d checkpoints: the mean is of these, not of %d. Save more often, or raise save_total_limit"
        logger.warning(told, folder, len(found), count)


def _best_first(folder: Path, metric: str, greater_is_better: bool) -> list[Path]:
    """Return the evaluated checkpoints; one without Trainer's state was broken off while it was saved or deleted."""
    found: list[tuple[float, Path]] = []
    key, sign = f"eval_{metric.removeprefix('eval_')}", -1 if greater_is_better else 1
    for checkpoint in map(Path, sort_checkpoints(str(folder))):
        if not (checkpoint / TRAINER_STATE_NAME).exists():
            continue
        state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        values = [sign * log[key] for log in state["log_history"] if key in log and log["step"] == state["global_step"]]
        found += [(values[-1], checkpoint)] if values else []
    return [checkpoint for _, checkpoint in sorted(found, key=lambda one: (math.isnan(one[0]), *one))]


class KeepBest(TrainerCallback):
    """Of the checkpoints of a run keeps those with the best evaluations, and the newest one to resume from.

    Trainer's `save_total_limit` keeps the newest ones and a single best one; set it to None.

    Args:
        count: The best ones to keep; each save must follow an evaluation.
    Source: fairseq, `--keep-best-checkpoints`.
    """

    def __init__(self, count: int) -> None:
        self.count = count

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Delete what is neither among the best nor the newest; the folder may have some of an earlier run."""
        saved = [Path(checkpoint) for checkpoint in sort_checkpoints(str(args.output_dir))]
        if state.is_world_process_zero:
            best = _best_first(Path(str(args.output_dir)), **chosen_by(args))[: self.count]
            new = Path(str(args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
            for checkpoint in set(saved) - {saved[-1], new, *best}:
                shutil.rmtree(checkpoint)


def chosen_by(args: TrainingArguments) -> dict[str, Any]:
    """Return the arguments of `best_checkpoints` that a training's own are; without any, perplexity."""
    return {
        "metric": args.metric_for_best_model or "perplexity",
        "greater_is_better": bool(args.metric_for_best_model and args.greater_is_better),
    }


def last_checkpoints(folder: Path, count: int) -> list[Path]:
    """Return the newest checkpoints of a run's folder, the oldest of them first.

    Source: Vaswani et al. 2017, section 6.1: the mean of the last 5 of a base model and of the last 20 of a big one.
    Raises:
        ValueError: If there is none, or `count` is below 1.
    Warns: If there are fewer than `count`, which are returned.
    """
    found = [Path(checkpoint) for checkpoint in sort_checkpoints(str(folder))]
    _check_number(found, count, folder)
    return found[-count:]


@torch.no_grad()
def load_mean(model: PreTrainedModel, checkpoints: list[Path]) -> None:
    """Give a model the mean of the weights of some of its checkpoints, computed in float32 or wider.

    Source: Vaswani et al. 2017, section 6.1.
    Raises:
        ValueError: If a checkpoint is not whole, or is of another model.
    """
    total: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        tensors = read_tensors(checkpoint / SAFE_WEIGHTS_NAME)
        if total and tensors.keys() != total.keys():
            raise ValueError(f"the checkpoints in {checkpoint.parent} are not all of one model; train it anew")
        for name, tensor in tensors.items():
            wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32)) if tensor.is_floating_point() else tensor
            total[name] = wide if name not in total or not tensor.is_floating_point() else total[name] + wide
    mean = {name: value / len(checkpoints) if value.is_floating_point() else value for name, value in total.items()}
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    lost = trained - mean.keys() - (model.all_tied_weights_keys or {}).keys()
    extra = mean.keys() - model.state_dict().keys()
    if lost or extra:
        raise ValueError(f"the checkpoints are of another model: {listed(sorted(lost | extra))}")
    model.load_state_dict(mean, strict=False)
    model.tie_weights()
