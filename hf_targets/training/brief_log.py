"""A training's log as short lines, in place of the dictionaries that Transformers prints."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tqdm.auto import tqdm
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.utils import logging

_HIDDEN = ("runtime", "_per_second", "ensemble_weight", "word_perplexity", "epoch", "_compilation_time")
"""Parts of the names of metrics that a line leaves out; the log of the trainer has them."""


def log_briefly(trainer: Trainer) -> None:
    """Let a trainer print one short line for each log, and show one progress bar.

    There is no bar with `disable_tqdm`, after `transformers.utils.logging.disable_progress_bar()`, or if the standard
    error is no terminal. Without this call a trainer prints what Transformers prints.
    """
    for kind in (PrinterCallback, DEFAULT_PROGRESS_CALLBACK):
        trainer.remove_callback(kind)
    if not is_brief(trainer):
        shows_bar = logging.is_progress_bar_enabled() and not trainer.args.disable_tqdm
        trainer.add_callback(BriefLog(shows_bar=shows_bar))


def is_brief(trainer: Trainer) -> bool:
    """Return whether `log_briefly` was called for a trainer."""
    return any(isinstance(callback, BriefLog) for callback in trainer.callback_handler.callbacks)


def say(line: str) -> None:
    """Print a line above the progress bars."""
    tqdm.write(line, file=sys.stdout)
    sys.stdout.flush()


@contextmanager
def without_bars_of_files() -> Iterator[None]:
    """Switch off the progress bars that Transformers shows for each checkpoint it writes or reads."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


class BriefLog(TrainerCallback):
    """Prints lines of a training and of the evaluations in it; those after its end are the caller's to report."""

    def __init__(self, *, shows_bar: bool) -> None:
        self._shows_bar = shows_bar
        self._steps: tqdm | None = None
        self._batches: tqdm | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin the bar of the optimizer steps."""
        if state.is_world_process_zero:
            self._steps = self._bar(state.max_steps, "training", "step", initial=state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Move the bar."""
        if self._steps is not None:
            self._steps.update(state.global_step - self._steps.n)

    def on_prediction_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        eval_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        """Move the bar of an evaluation."""
        if state.is_world_process_zero and hasattr(eval_dataloader, "__len__"):
            if self._batches is None:
                self._batches = self._bar(len(eval_dataloader), "evaluation", "batch")
            self._batches.update()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """End the bar of an evaluation."""
        if self._batches is not None:
            self._batches.close()
        self._batches = None

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print a line, if there is something to report."""
        if self._steps is not None and (figures := brief_figures(logs or {})):
            say(f"  step {state.global_step}/{state.max_steps}  {figures}")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the bar of the optimizer steps."""
        if self._steps is not None:
            self._steps.close()
        self._steps = None

    def _bar(self, total: int, what: str, unit: str, initial: int = 0) -> tqdm:
        disable = None if self._shows_bar else True  # None: where the standard error is no terminal
        return tqdm(total=total, desc=what, unit=unit, initial=initial, leave=False, disable=disable)


def brief_figures(logs: Mapping[str, float]) -> str:
    """Return what a line says of a log of the Trainer: losses and their parts, or the figures of an evaluation.

    >>> brief_figures({"loss": 5.2134, "loss_next_token": 5.0, "learning_rate": 0.001, "grad_norm": 1.0, "epoch": 0.5})
    'loss 5.213  next_token 5  lr 0.001'
    >>> brief_figures({"eval_loss": 5.0, "eval_perplexity": 402.13, "eval_perplexity_0.2": 390.0, "eval_runtime": 1.0})
    'validation  loss 5  perplexity 402.1'
    >>> brief_figures({"train_runtime": 3.0, "train_loss": 5.5})
    ''
    """
    if "loss" in logs:
        parts = {name.removeprefix("loss_"): value for name, value in logs.items() if name.startswith("loss")}
        rate = {"lr": logs["learning_rate"]} if "learning_rate" in logs else {}
        return _told({**parts, **rate})
    evaluated = {name.removeprefix("eval_"): value for name, value in logs.items() if name.startswith("eval_")}
    shown = {name: value for name, value in evaluated.items() if not _is_hidden(name)}
    return f"validation  {_told(shown)}" if shown else ""


def _told(figures: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in figures.items())


def _is_hidden(name: str) -> bool:
    is_of_one_weight = name.rsplit("_", 1)[-1].replace(".", "").isdigit()
    return is_of_one_weight or any(part in name for part in _HIDDEN)
