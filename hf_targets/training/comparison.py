"""Models trained side by side on one corpus: the same updates, schedule, seeds and rule of selection for all."""

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import EarlyStoppingCallback, PreTrainedModel, set_seed
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from hf_targets.backbones.leaks import check_leaky_name
from hf_targets.backbones.new_parts import new_part_of, unwrapped
from hf_targets.backbones.positions import max_positions
from hf_targets.training.arguments import TargetTrainingArguments
from hf_targets.training.best_checkpoints import best_checkpoints, load_mean
from hf_targets.training.brief_log import log_briefly, say, without_bars_of_files
from hf_targets.training.experiments import Experiment
from hf_targets.training.outputs import RUN_OUTPUT, check_run_folder, check_run_names, remove_output, write_json
from hf_targets.training.resuming import train
from hf_targets.training.seeds import run_folder
from hf_targets.training.trainer import TargetTrainer


@dataclass(frozen=True)
class Run:
    """One training of a model with one seed, and what it reached.

    Attributes:
        name: Of the model; runs of one name differ in their seeds.
        seed: Of its first weights, of the order of its data and of its dropout.
        num_parameters: Trainable ones.
        seconds: Of training, evaluations included, in all its parts.
        ensemble_weight: The lambda of the lowest validation perplexity among those above 0, for a model with heads.
        validation, test: Metrics of the trainer's evaluations, by their names there. Of the test text there is none
            that was chosen on it: `perplexity_ensemble` is that of the ensemble weight above. Empty if there is no test
            text.
        history: Trainer's log.
    """

    name: str
    seed: int
    num_parameters: int
    seconds: float
    ensemble_weight: float | None
    validation: dict[str, float]
    test: dict[str, float]
    history: list[dict[str, float]]

    def test_perplexity(self, *, ensemble: bool, level: str = "perplexity") -> float | None:
        """Return the test perplexity without the ensemble, or with it at the weight chosen on validation text."""
        return self.test.get(f"{level}_ensemble" if ensemble else level)


def is_better(run: Run, other: Run | None) -> bool:
    """Return whether a run's validation perplexity is below the other's, if there is another."""
    return other is None or run.validation["perplexity"] < other.validation["perplexity"]


def train_run(
    name: str,
    make_model: Callable[[], PreTrainedModel],
    args: TargetTrainingArguments,
    corpus: Mapping[str, Dataset],
    *,
    seed: int | None = None,
    patience: int | None = None,
    average_checkpoints: int = 1,
    resume: bool = False,
    begin: Callable[[], object] | None = None,
    make_trainer: Callable[..., TargetTrainer],
) -> tuple[Run, TargetTrainer]:
    """Train a model, keep its checkpoint of the lowest validation perplexity, and measure that on the test text.

    The trainer logs briefly (`log_briefly`).

    The perplexity to select by is that of the ordinary head, for models with heads and without; the ensemble weight of
    the test figure is chosen on the validation text too.

    Args:
        name: Of the model, a plain one, as its folder's is.
        make_model: Called once the seed is set, so that all runs start from the same random state.
        args: Of all runs; this one's checkpoints go to the subfolder `run_folder(name, seed)` of its output folder.
        corpus: Rows with the splits train and validation, and test; without this, nothing is measured on it.
        seed: Of everything random in the run, but for what has a seed of its own in `args`; None: that of `args`.
        make_trainer: Called with `model`, `args`, both data sets and `callbacks`; its evaluations give `perplexity`.
        patience: Evaluations without a lower validation perplexity before training stops early.
        average_checkpoints: Keep and measure the mean of so many best checkpoints (`load_mean`) in place of the best.
        resume: Whether to go on from the newest whole checkpoint of the subfolder, if there is one; what was trained to
            its end is not trained again. Without, the checkpoints and models in the subfolder are removed.
        begin: Called before anything is removed or trained, when all that can be checked is checked:
            `Experiment.begin`.
    Raises:
        ValueError: Before anything is removed, if the name is none of a folder, the subfolder is a link, blocks are
            longer than the model's positions, no update is asked for, fewer checkpoints are kept than averaged,
            evaluations are to generate texts, or evaluations and checkpoints do not come at the same steps. Neither of
            them asked for means both at every epoch.
    """
    if average_checkpoints > 1 and 0 < (args.save_total_limit or 0) < average_checkpoints:
        raise ValueError(
            f"save_total_limit must keep the {average_checkpoints} checkpoints that are averaged, got "
            f"{args.save_total_limit}; raise it, or lower average_checkpoints"
        )
    check_run_names([name])
    args = _arguments_of(name, args, args.seed if seed is None else seed)
    folder = Path(args.output_dir or ".")
    check_run_folder(folder)
    set_seed(args.seed)
    with _quiet(args):
        model = make_model()
    check_leaky_name(name, model)
    if new_part_of(model) is None:
        args = args.for_baseline()
    _check_length(model, corpus)
    trainer = make_trainer(
        model=model,
        args=args,
        train_dataset=corpus["train"],
        eval_dataset=corpus["validation"],
        callbacks=[] if patience is None else [EarlyStoppingCallback(patience)],
    )
    if "test" in corpus:
        trainer._check_dataset(corpus["test"], "test")  # not only once all is trained
    if begin is not None:
        begin()
    if not resume and args.should_save:
        remove_output(folder, RUN_OUTPUT)
    trainer.accelerator.wait_for_everyone()
    log_briefly(trainer)
    with without_bars_of_files():
        training = train(trainer, resume=resume)
    trainer.remove_callback(EarlyStoppingCallback)
    if average_checkpoints > 1:
        load_mean(unwrapped(model), best_checkpoints(folder, average_checkpoints))  # pyright: ignore
    validation = _without_prefix(trainer.evaluate(), "eval_")
    weight, test = validation.get("ensemble_weight"), {}
    if "test" in corpus:
        on_test = trainer.evaluate(corpus["test"], metric_key_prefix="test")  # pyright: ignore[reportArgumentType]
        test = _at_weight(_without_prefix(on_test, "test_"), weight)
    num_parameters = trainer.get_num_trainable_parameters()
    return Run(name, args.seed, num_parameters, training.seconds, weight, validation, test, training.history), trainer


def train_runs(
    make_models: Mapping[str, Callable[[], PreTrainedModel]],
    args: TargetTrainingArguments,
    corpus: Mapping[str, Dataset],
    experiment: Experiment,
    *,
    seeds: Sequence[int],
    settings: Mapping[str, Any],
    patience: int | None = None,
    average_checkpoints: int = 1,
    resume: bool | None = None,
    results_name: str = "results.json",
    make_trainer: Callable[..., TargetTrainer] | Mapping[str, Callable[..., TargetTrainer]],
) -> Iterator[tuple[list[Run], TargetTrainer]]:
    """Train every model with each seed, and yield after each run all runs so far, and its trainer with its model.

    All runs of the first seed come first. The file `results_name` has all runs so far, with their histories. The
    trainer loses its model and its optimizer before the next run begins; whoever keeps the model keeps its memory. The
    first process prints short lines (`log_briefly`).

    Args:
        make_models: By the name of the model, what makes it.
        args, corpus, patience, average_checkpoints: As for `train_run`.
        make_trainer: As for `train_run`, or one for each model, by its name.
        experiment: Begun before anything is trained; it says whether to resume.
        settings: Of the recipe, written into the file with the arguments.
        resume: None: as the experiment says. True, to measure runs of this experiment again, as on a test text that
            was not given before: those that have ended are not trained again.
        results_name: One of the experiment's outputs.
    """
    runs: list[Run] = []
    planned = list(product(seeds, make_models.items()))
    for number, (seed, (name, make_model)) in enumerate(planned, start=1):
        title = f"run {number}/{len(planned)}: {name}, seed {seed}"
        if args.process_index == 0:
            say(title)
        run, trainer = train_run(
            name,
            make_model,
            args,
            corpus,
            seed=seed,
            patience=patience,
            average_checkpoints=average_checkpoints,
            resume=experiment.resume if resume is None else resume,
            begin=experiment.begin,
            make_trainer=make_trainer[name] if isinstance(make_trainer, Mapping) else make_trainer,
        )
        runs.append(run)
        if trainer.is_world_process_zero():
            content = {"settings": {**settings, **args.to_sanitized_dict()}, "rows": [asdict(run) for run in runs]}
            write_json(experiment.folder / results_name, content)
            text, reached = ("test", run.test) if run.test else ("validation", run.validation)
            say(f"{title}  {text} perplexity {reached['perplexity']:.2f}  {run.seconds:.0f} s")
        with _quiet(args):
            yield runs, trainer
        _release(trainer)


def _quiet(args: TargetTrainingArguments) -> AbstractContextManager[None]:
    """Show bars of files where `log_briefly` shows bars."""
    return without_bars_of_files() if args.disable_tqdm or not sys.stderr.isatty() else nullcontext()


def _release(trainer: TargetTrainer) -> None:
    """Let go of the model and the optimizer of a trainer that is done, so that the next run has their memory."""
    trainer.accelerator.free_memory()
    for name in ("optimizer", "lr_scheduler", "model", "model_wrapped"):
        setattr(trainer, name, None)
    handler = trainer.callback_handler
    for name in ("model", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader"):
        setattr(handler, name, None)


def _arguments_of(name: str, args: TargetTrainingArguments, seed: int) -> TargetTrainingArguments:
    args = copy.deepcopy(args)
    args.seed = seed
    args.output_dir = str(Path(args.output_dir or ".") / run_folder(name, seed))
    args.push_to_hub = False  # the recipe uploads one model, at the end
    if args.eval_strategy == IntervalStrategy.NO:
        args.eval_strategy, args.save_strategy = IntervalStrategy.EPOCH, SaveStrategy.EPOCH
    elif IntervalStrategy(args.eval_strategy).value != SaveStrategy(args.save_strategy).value:
        raise ValueError(
            f"the best checkpoint is chosen by evaluations, so both come at the same steps, got "
            f"eval_strategy={args.eval_strategy!r} and save_strategy={args.save_strategy!r}"
        )
    if args.max_steps <= 0 and args.num_train_epochs <= 0:
        raise ValueError(
            f"a model is trained for at least one update, got num_train_epochs={args.num_train_epochs:g} and "
            f"max_steps={args.max_steps}; raise one of them"
        )
    if getattr(args, "predict_with_generate", False):
        raise ValueError(
            "the best checkpoint is chosen by its perplexity, which evaluations with predict_with_generate=True do not "
            "measure; leave it out: recipes write texts at the end"
        )
    args.load_best_model_at_end = True
    args.metric_for_best_model, args.greater_is_better = "perplexity", False
    return args


def _check_length(model: PreTrainedModel, corpus: Mapping[str, Dataset]) -> None:
    block_size = len(corpus["train"][0]["input_ids"])
    positions = max_positions(model.config)
    if positions is not None and block_size > positions:
        raise ValueError(
            f"rows must have at most the model's {positions} positions, got {block_size} tokens; cut the text into "
            "shorter ones (block_size, or max_length)"
        )


def _without_prefix(metrics: dict[str, float], prefix: str) -> dict[str, float]:
    kept = ("perplexity", "weight", "nelbo")
    return {name.removeprefix(prefix): value for name, value in metrics.items() if any(part in name for part in kept)}


def _at_weight(test: dict[str, float], weight: float | None) -> dict[str, float]:
    """Return the metrics with what an evaluation chose on the test text replaced by the figures of this weight."""
    metrics = {name: value for name, value in test.items() if not name.endswith(("_ensemble", "ensemble_weight"))}
    for level in ("perplexity", "word_perplexity"):
        if weight is not None and f"{level}_{weight:g}" in metrics:
            metrics[f"{level}_ensemble"] = metrics[f"{level}_{weight:g}"]
    return metrics
