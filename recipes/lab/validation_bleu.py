"""Validation by BLEU, as the published programs choose checkpoints by it."""

from collections.abc import Callable
from typing import Any

from hf_targets import GaussianDiffusionTrainer


class BleuTrainer(GaussianDiffusionTrainer):
    """A Trainer whose evaluations have scores of texts, so that `metric_for_best_model: bleu` chooses by them.

    Args:
        score: Writes the validation text with the model, and returns its scores by name.
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
