"""The results of a run: measured, and kept in its folder as `results.json`."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from datasets import Dataset
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from hf_targets import GaussianDiffusionTrainer
from hf_targets.data.token_rows import NUM_WORDS
from hf_targets.training.trainer import TargetTrainer

RESULTS_NAME = "results.json"
_FOLDERS = re.compile(r"""(?<![\w.:/])/(?:[^/\s"',]+/)*([^/\s"',]+)/?""")
_CHOICES = {"ensemble": ("ensemble_weight", ""), "temperature": ("temperature", "at_")}
"""Of a perplexity with a setting that is chosen on the validation text: the setting, and what is before its value."""
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")


def write_results(folder: str | Path, results: dict[str, Any]) -> None:
    """Write results into a folder, which is made; the file is whole at any time."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_json(Path(folder) / RESULTS_NAME, shareable(results))


def shareable(value: Any) -> Any:
    """Return a value as others may read it: of absolute paths the last name, and no `user:password@` in addresses.

    >>> shareable({"dataset": "/home/me/text.txt", "url": ["https://me:secret@example.org/a/b"]})
    {'dataset': '.../text.txt', 'url': ['https://example.org/a/b']}
    """
    if isinstance(value, dict):
        return {name: shareable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [shareable(one) for one in value]
    if isinstance(value, str | Path):
        return _FOLDERS.sub(r".../\1", _PASSWORD.sub("", str(value)))
    return value


def read_results(folder: str | Path) -> dict[str, Any] | None:
    """Return the results in a folder; None if there are none yet."""
    file = Path(folder) / RESULTS_NAME
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def write_json(file: Path, content: Any) -> None:
    """Write a JSON file, and rename it to its name once it is whole."""
    part = file.with_name(f"{file.name}.part")
    part.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
    part.replace(file)


class TrainingTime(TrainerCallback, ExportableState):
    """Knows when a training began, as if nothing had broken it off; a checkpoint keeps the seconds until then."""

    def __init__(self, before: float = 0.0) -> None:
        self.begin = time.monotonic() - before

    def state(self) -> dict[str, Any]:
        """Return the arguments of the one that goes on."""
        return {"args": {"before": time.monotonic() - self.begin}, "attributes": {}}


def timed_training(trainer: Trainer) -> float:
    """Train, from the checkpoint that the arguments name if they name one, and return the seconds of all parts."""
    trainer.args.restore_callback_states_from_checkpoint = True
    trainer.add_callback(TrainingTime())
    trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
    (clock,) = (one for one in trainer.callback_handler.callbacks if isinstance(one, TrainingTime))
    return time.monotonic() - clock.begin


def measure(trainer: TargetTrainer, test: Dataset | None = None) -> dict[str, float]:
    """Return what a trained model reaches on a test text, and its validation figures as `validation_...`.

    Nothing is chosen on the test text: `perplexity_ensemble` is that of the ensemble weight of the lowest validation
    perplexity, `ensemble_weight`, and `perplexity_temperature` of a plain model that of its `temperature`. A model that
    reads what it predicts gets `leaky_perplexity` instead of `perplexity`. `parameters` are all of a model's, trained
    or not; `test_words` are those of the test text, ends of lines included.
    """
    trainer.remove_callback(EarlyStoppingCallback)  # it would count these evaluations
    validation = _figures(trainer.evaluate(), "eval_")
    results = {f"validation_{name}": value for name, value in validation.items()}
    if test is not None:
        measured = _figures(trainer.evaluate(test, metric_key_prefix="test"), "test_")
        results |= {name: value for name, value in measured.items() if not name.endswith(tuple(_CHOICES))}
        if NUM_WORDS in test.column_names:
            results["test_words"] = sum(test[NUM_WORDS])
    for name, (setting, given) in _CHOICES.items():
        if (chosen := validation.get(setting)) is not None:
            results[setting] = chosen
            for level in ("perplexity", "word_perplexity"):
                if (value := results.get(f"{level}_{given}{chosen:g}")) is not None:
                    results[f"{level}_{name}"] = value
    results["parameters"] = sum(one.numel() for one in cast(Any, trainer.model).parameters())
    if is_leaky(trainer.model):
        return {name.replace("perplexity", "leaky_perplexity"): value for name, value in results.items()}
    return results


def is_leaky(model: Any) -> bool:
    """Return whether a model or a part of it reads the tokens that it predicts, by `paper_leaky`."""
    configs = (getattr(part, "config", None) for part in model.modules())
    return any(getattr(config, "paper_leaky", False) for config in configs)


def _figures(metrics: dict[str, float], prefix: str) -> dict[str, float]:
    others = ("loss", "runtime", "per_second", "epoch", "compilation_time", "model_preparation_time")
    named = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
    return {name: value for name, value in named.items() if not name.endswith(others)}


class BleuTrainer(GaussianDiffusionTrainer):
    """A Trainer whose evaluations have scores of texts, so that `metric_for_best_model: bleu` chooses by them.

    `score` writes the validation text with the model, as the published programs do, and returns its scores by name.
    """

    def __init__(self, *args: Any, score: Callable[[], dict[str, float]], **kwargs: Any) -> None:
        self._score = score
        super().__init__(*args, **kwargs)

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Evaluate, and score what the model, with its averaged weights, writes."""
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        with self.averaged_weights():
            output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in self._score().items()})
        return output
