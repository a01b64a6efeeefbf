"""Training that may be broken off at any time: it goes on from the newest whole checkpoint, and ends as unbroken."""

import copy
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from accelerate.utils import broadcast_object_list
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_targets.training.checkpoints import (
    defect_of,
    defect_of_weights,
    newest_whole_checkpoint,
    set_newer_aside,
)
from hf_targets.training.outputs import TRAINING_NAME, write_json
from hf_targets.training.trainer import TargetTrainer


@dataclass(frozen=True)
class Training:
    """A training that has come to its end.

    Attributes:
        seconds: That it took, evaluations included, in all its parts; what was lost between the last checkpoint and a
            break is not counted.
        history: Trainer's log.
    """

    seconds: float
    history: list[dict[str, float]]


class _Clock(TrainerCallback, ExportableState):
    """Counts the seconds of a training, and of those before that its checkpoint tells of."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._before = seconds
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Of all parts, until now."""
        return self._before + time.perf_counter() - self._start

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of this."""
        return {"args": {"seconds": self.seconds}, "attributes": {}}


def train(trainer: Trainer, *, resume: bool) -> Training:
    """Train to the end, and leave the model with the weights that the trainer's arguments ask for.

    Args:
        resume: Whether to go on from the newest whole checkpoint in the trainer's output folder, if there is one. A
            training that had come to its end is not repeated: its weights are loaded.
    Raises:
        ValueError: If it is to go on in its middle, and its checkpoints have the model alone; or the best checkpoint
            so far, which is loaded at the end, is gone or not whole.
    """
    found: list[Any] = [None, None, None, None]
    if resume and trainer.is_world_process_zero():
        found = _find(trainer)
        found.append(None if found[0] is None else _settle_best(Path(found[0]), trainer))
    # the same for all, whatever each sees of the disk
    checkpoint, finished, steps_done, lost = broadcast_object_list(found)
    if lost is not None:
        raise ValueError(lost)
    if checkpoint is not None and steps_done is None and trainer.args.save_only_model:
        raise ValueError(
            f"a training goes on with the states of its optimizer and of random numbers, which {checkpoint} does not "
            "have, as save_only_model leaves them out; train anew, with --overwrite_output_dir true"
        )
    args, trainer.args = trainer.args, copy.copy(trainer.args)
    trainer.args.restore_callback_states_from_checkpoint = checkpoint is not None
    if steps_done is not None:
        trainer.args.num_train_epochs, trainer.args.max_steps = 0, -1
    trainer.add_callback(_Clock())
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    finally:
        trainer.args = args
        clock = cast(_Clock, trainer.pop_callback(_Clock))  # which is another now, if it was restored
    if finished is None:
        finished = Training(clock.seconds, list(trainer.state.log_history))
        _record(trainer, finished, steps_done or trainer.state.max_steps)
    return finished


def _find(trainer: Trainer) -> list[Any]:
    """Return the checkpoint to resume from, what is known of a finished training, and its steps if none is left."""
    folder = Path(trainer.args.output_dir or ".")
    max_steps = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())[-1]
    if (folder / TRAINING_NAME).is_file():
        record = json.loads((folder / TRAINING_NAME).read_text(encoding="utf-8"))
        checkpoint, steps = folder / record.pop("checkpoint"), record.pop("max_steps")
        if steps == max_steps and defect_of(checkpoint, trainer) is None:
            return [str(checkpoint), Training(**record), max_steps]
    checkpoint = newest_whole_checkpoint(trainer)
    if checkpoint is None:
        return [None, None, None]
    set_newer_aside(checkpoint)
    state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    has_ended = _has_stopped_early(state) or (isinstance(trainer, TargetTrainer) and trainer.has_ended(state))
    is_over = state.global_step >= max_steps or has_ended
    return [str(checkpoint), None, max_steps if is_over else None]


def _settle_best(checkpoint: Path, trainer: Trainer) -> str | None:
    """Write into a checkpoint where the best one is now, in the same folder: it may have been moved or copied.

    Returns: What is wrong if the best one is needed, and is gone or not whole; else None.
    """
    file = checkpoint / TRAINER_STATE_NAME
    state = json.loads(file.read_text(encoding="utf-8"))
    if state.get("best_model_checkpoint") is None or not trainer.args.load_best_model_at_end:
        return None
    recorded = Path(state["best_model_checkpoint"])
    best = checkpoint.parent / recorded.name
    if not best.is_dir() and recorded.is_dir():  # this folder has the newest checkpoint alone
        best = recorded
    if (defect := defect_of_weights(best, trainer)) is not None:
        return (
            f"a training ends with the weights of its best checkpoint, and so far that is {best}, which is not whole "
            f"({defect}); bring it back, or train anew, with --overwrite_output_dir true"
        )
    if recorded.resolve() != best.resolve():
        write_json(file, {**state, "best_model_checkpoint": str(best)})
    return None


def _has_stopped_early(state: TrainerState) -> bool:
    stopping = cast(dict[str, Any], state.stateful_callbacks or {}).get(EarlyStoppingCallback.__name__)
    if stopping is None:
        return False
    return stopping["attributes"]["early_stopping_patience_counter"] >= stopping["args"]["early_stopping_patience"]


def _record(trainer: Trainer, training: Training, max_steps: int) -> None:
    """Write that a training has ended, if there is a checkpoint with the weights it ended with."""
    folder = Path(trainer.args.output_dir or ".")
    best = trainer.state.best_model_checkpoint if trainer.args.load_best_model_at_end else None
    name = Path(best).name if best is not None else f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
    if trainer.args.should_save and (folder / name).is_dir():
        write_json(folder / TRAINING_NAME, {**asdict(training), "checkpoint": name, "max_steps": max_steps})
