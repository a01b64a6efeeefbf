"""Models trained side by side on one corpus: the same budget, seed and rule of selection for every row."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import EarlyStoppingCallback, PreTrainedModel, set_seed
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from hf_targets.training.arguments import MultiTokenTrainingArguments, TargetTrainingArguments
from hf_targets.training.multitoken import MultiTokenTrainer, heads_of
from hf_targets.training.outputs import ROW_OUTPUT, check_row_folder, check_row_names, remove_output, write_json
from hf_targets.training.resuming import train
from hf_targets.training.trainer import TargetTrainer


@dataclass(frozen=True)
class Row:
    """One trained model and what it reached.

    Attributes:
        name: Of the row, and of the folder its checkpoints are in.
        num_parameters: Trainable ones.
        seconds: Of training, evaluations included, in all its parts.
        ensemble_weight: The lambda of the lowest validation perplexity among those above 0, for a model with heads.
        validation, test: Metrics of `training.multitoken.perplexities`, by their names there, or the bounds of
            `training.diffusion`.
        history: Trainer's log.
    """

    name: str
    num_parameters: int
    seconds: float
    ensemble_weight: float | None
    validation: dict[str, float]
    test: dict[str, float]
    history: list[dict[str, float]]

    def test_perplexity(self, *, ensemble: bool, level: str = "perplexity") -> float | None:
        """Return the test perplexity without the ensemble, or with it at the weight chosen on validation text."""
        if not ensemble:
            return self.test.get(level)
        return None if self.ensemble_weight is None else self.test.get(f"{level}_{self.ensemble_weight:g}")


def train_row(
    name: str,
    make_model: Callable[[], PreTrainedModel],
    args: TargetTrainingArguments,
    corpus: Mapping[str, Dataset],
    *,
    patience: int | None = None,
    resume: bool = False,
    begin: Callable[[], object] | None = None,
    make_trainer: Callable[..., TargetTrainer] = MultiTokenTrainer,
) -> tuple[Row, TargetTrainer]:
    """Train a model, keep its checkpoint of the lowest validation perplexity, and measure that on the test text.

    The perplexity to select by is that of the ordinary head, for models with heads and without; the ensemble weight of
    the test figure is chosen on the validation text too.

    Args:
        name: Of the row, a plain one, as its folder's is.
        make_model: Called once the seed is set, so that all rows start from the same random state.
        args: Of all rows; this one's checkpoints go to the subfolder `name` of its output folder.
        corpus: Rows with the splits train, validation and test.
        make_trainer: Called with `model`, `args`, both data sets and `callbacks`; its evaluations give `perplexity`.
        patience: Evaluations without a lower validation perplexity before training stops early.
        resume: Whether to go on from the newest whole checkpoint of the subfolder, if there is one; what was trained to
            its end is not trained again. Without, the checkpoints and models in the subfolder are removed.
        begin: Called before anything is removed or trained, when all that can be checked is checked; `Run.begin`.
    Raises:
        ValueError: Before anything is removed, if the name is none of a folder, the subfolder is a link, blocks are
            longer than the model's positions, or evaluations and checkpoints do not come at the same steps. Neither of
            them asked for means both at every epoch.
    """
    check_row_names([name])
    args = _arguments_of(name, args)
    folder = Path(args.output_dir or ".")
    check_row_folder(folder)
    set_seed(args.seed)
    model = make_model()
    if isinstance(args, MultiTokenTrainingArguments) and heads_of(model) is None:
        args.head_warmup_steps, args.head_learning_rate = 0, None
    _check_length(model, corpus)
    trainer = make_trainer(
        model=model,
        args=args,
        train_dataset=corpus["train"],
        eval_dataset=corpus["validation"],
        callbacks=[] if patience is None else [EarlyStoppingCallback(patience)],
    )
    if begin is not None:
        begin()
    if not resume and args.should_save:
        remove_output(folder, ROW_OUTPUT)
    trainer.accelerator.wait_for_everyone()
    training = train(trainer, resume=resume)
    trainer.remove_callback(EarlyStoppingCallback)
    validation = _without_prefix(trainer.evaluate(), "eval_")
    on_test = trainer.evaluate(corpus["test"], metric_key_prefix="test")  # pyright: ignore[reportArgumentType]
    test = _without_prefix(on_test, "test_")
    weight = validation.get("ensemble_weight")
    num_parameters = trainer.get_num_trainable_parameters()
    return Row(name, num_parameters, training.seconds, weight, validation, test, training.history), trainer


def _arguments_of(name: str, args: TargetTrainingArguments) -> TargetTrainingArguments:
    args = copy.deepcopy(args)
    args.output_dir = str(Path(args.output_dir or ".") / name)
    args.push_to_hub = False  # the recipe uploads one model, at the end
    if args.eval_strategy == IntervalStrategy.NO:
        args.eval_strategy, args.save_strategy = IntervalStrategy.EPOCH, SaveStrategy.EPOCH
    elif IntervalStrategy(args.eval_strategy).value != SaveStrategy(args.save_strategy).value:
        raise ValueError(
            f"the best checkpoint is chosen by evaluations, so both come at the same steps, got "
            f"eval_strategy={args.eval_strategy!r} and save_strategy={args.save_strategy!r}"
        )
    args.load_best_model_at_end = True
    args.metric_for_best_model, args.greater_is_better = "perplexity", False
    return args


def _check_length(model: PreTrainedModel, corpus: Mapping[str, Dataset]) -> None:
    block_size = len(corpus["train"][0]["input_ids"])
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and block_size > positions:
        raise ValueError(f"block_size must be at most the model's {positions} positions, got {block_size}; lower it")


def _without_prefix(metrics: dict[str, float], prefix: str) -> dict[str, float]:
    kept = ("perplexity", "weight", "nelbo")
    return {name.removeprefix(prefix): value for name, value in metrics.items() if any(word in name for word in kept)}


def format_table(rows: list[Row]) -> str:
    """Return the rows' test perplexities as a Markdown table: token-level, word-level where known, with and without."""
    heading = ["model", "perplexity", "with ensemble", "lambda", "per word", "per word, ensemble", "training"]
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)]]
    for row in rows:
        figures = [row.test_perplexity(ensemble=ensemble) for ensemble in (False, True)]
        words = [row.test_perplexity(ensemble=ensemble, level="word_perplexity") for ensemble in (False, True)]
        weight = "" if row.ensemble_weight is None else f"{row.ensemble_weight:g}"
        shown = ["" if value is None else f"{value:.2f}" for value in (*figures, *words)]
        lines.append([row.name, *shown[:2], weight, *shown[2:], f"{row.seconds:.0f} s"])
    return _markdown(lines)


def format_bounds(rows: list[Row]) -> str:
    """Return the rows' perplexity bounds on the test text as a Markdown table, with twice their standard error."""
    lines = [["model", "parameters", "perplexity", "x the first", "validation", "training", "x the first"]]
    lines.append(["---", *["---:"] * (len(lines[0]) - 1)])
    for row in rows:
        perplexity, error = row.test["perplexity"], row.test.get("nelbo_standard_error")
        lines.append(
            [
                row.name,
                f"{row.num_parameters:,}",
                f"{perplexity:.2f}" + ("" if error is None else f" ± {2 * error * perplexity:.2f}"),
                f"{perplexity / rows[0].test['perplexity']:.3f}",
                f"{row.validation['perplexity']:.2f}",
                f"{row.seconds:.0f} s",
                f"{row.seconds / rows[0].seconds:.2f}",
            ]
        )
    return _markdown(lines)


def format_weights(rows: list[Row], level: str = "perplexity") -> str:
    """Return the rows' test perplexities at every ensemble weight as a Markdown table."""
    prefix = f"{level}_"
    weights = sorted({float(key.removeprefix(prefix)) for row in rows for key in row.test if _is_weight(key, prefix)})
    lines = [["model", *(f"lambda {weight:g}" for weight in weights)], ["---", *["---:"] * len(weights)]]
    for row in rows:
        figures = [row.test.get(f"{prefix}{weight:g}") for weight in weights]
        lines.append([row.name, *("" if figure is None else f"{figure:.1f}" for figure in figures)])
    return _markdown(lines)


def _is_weight(key: str, prefix: str) -> bool:
    return key.startswith(prefix) and key.removeprefix(prefix).replace(".", "").isdigit()


def _markdown(lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def write_rows(rows: list[Row], folder: Path, settings: dict[str, Any]) -> None:
    """Write `results.json`: every row with its history, and the settings that made it."""
    content = {"settings": settings, "rows": [asdict(row) for row in rows]}
    write_json(folder / "results.json", content)
