"""Gradient diversity at the checkpoints that runs left."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_pt_utils import LabelSmoother

from hf_targets import gradient_diversity, repair_reformer
from hf_targets.data.tokenization import tokenizer_fingerprint
from hf_targets.evaluation.diversity_callback import SmoothedLoss
from hf_targets.maths.statistics import mean_and_standard_error


def run_checkpoints(run: Path) -> dict[int, Path]:
    """Return the whole checkpoints in a run's folder by their steps, the earliest first."""
    whole = [path.parent for path in run.glob(f"checkpoint-*/{TRAINER_STATE_NAME}")]  # Trainer writes its state last
    numbered = {int(path.name.partition("-")[2]): path for path in whole}
    if not numbered:
        raise ValueError(f"{run} has no whole checkpoints; train it with a save_total_limit that keeps them")
    return dict(sorted(numbered.items()))


def tokenizer_of_runs(runs: list[Path]) -> PreTrainedTokenizerBase:
    """Return the tokenizer of runs, which they must share, so that all are measured on the same tokens."""
    first, *others = [AutoTokenizer.from_pretrained(run) for run in runs]
    if any(tokenizer_fingerprint(other) != tokenizer_fingerprint(first) for other in others):
        raise ValueError("runs must have the same tokenizer, to be measured on the same tokens; measure one at a time")
    return first


def load_causal(folder: Path) -> Any:
    """Return the causal model of a checkpoint."""
    model = repair_reformer(AutoModelForCausalLM.from_pretrained(folder))
    if type(model).__name__ not in (model.config.architectures or []):
        raise ValueError(f"next tokens take a causal model, and {folder} is a {model.config.architectures}")
    return model


def checkpoint_diversities(
    checkpoints: Mapping[int, Path],
    blocks: Dataset,
    *,
    num_batches: int,
    batch_size: int,
    seed: int = 0,
    dropout: bool = True,
    label_smoothing: float = 0.0,
) -> list[dict[str, float]]:
    """Return the mean gradient diversity of batches at each checkpoint, as entries of a log.

    All checkpoints, and all runs with the same blocks (of one length) and seed, are measured on the same batches.

    Returns: For each checkpoint `step`, `gradient_diversity`, and `standard_error` over the batches.
    """
    count = num_batches * batch_size
    if len(blocks) < count:
        raise ValueError(f"the batches need {count} blocks, and the text has {len(blocks)}; lower num_batches")
    order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(seed))[:count]
    rows = blocks.select(order.tolist()).with_format("torch")
    columns = rows.select_columns(["input_ids", "labels"])
    batches: list[Any] = [columns[start : start + batch_size] for start in range(0, count, batch_size)]
    entries = []
    for step, folder in checkpoints.items():
        model, smoothed = load_causal(folder), {}
        if label_smoothing and getattr(model, "smooths_labels", False):
            smoothed["label_smoothing"] = label_smoothing
        elif label_smoothing:
            model = SmoothedLoss(model, partial(LabelSmoother(epsilon=label_smoothing), shift_labels=True))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            values = [gradient_diversity(model, {**batch, **smoothed}, dropout=dropout) for batch in batches]
        mean, error = mean_and_standard_error(values)
        entries.append({"step": step, "gradient_diversity": mean, "standard_error": error})
    return entries
