"""Gradient diversity at the checkpoints that the runs of an experiment left."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_targets.evaluation.gradient_diversity import gradient_diversity
from hf_targets.maths.statistics import mean_and_standard_error
from hf_targets.training.brief_log import without_bars_of_files
from hf_targets.training.seeds import run_folder


def run_checkpoints(experiment: Path, name: str, seed: int) -> dict[int, Path]:
    """Return the checkpoints of a run by their steps, the earliest first.

    Raises:
        ValueError: If there are none.
    """
    folder = experiment / run_folder(name, seed)
    found = {
        int(match[1]): path
        for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*")
        if (match := re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", path.name)) and (path / "config.json").is_file()
    }
    if not found:
        raise ValueError(
            f"{folder} has no checkpoints; name a run of the experiment, and train it with a save_total_limit that "
            "keeps them"
        )
    return dict(sorted(found.items()))


def checkpoint_diversities(
    checkpoints: dict[int, Path],
    load: Callable[[Path], Any],
    blocks: Dataset,
    *,
    num_batches: int,
    batch_size: int,
    seed: int = 0,
    dropout: bool = True,
) -> list[dict[str, float]]:
    """Return the mean gradient diversity of batches at each checkpoint, as entries of a log.

    All checkpoints, and all runs with the same blocks and seed, are measured on the same batches.

    Args:
        checkpoints: By step.
        load: Returns the model of a checkpoint.
        blocks: Rows with `input_ids` and `labels` of one length.
        num_batches: Batches of `batch_size` rows, drawn without replacement.
        seed: Of the rows and of dropout.
        dropout: As for `gradient_diversity`; in training it is drawn.
    Returns: For each checkpoint `step`, `gradient_diversity`, and `standard_error` over the batches.
    Raises:
        ValueError: If the blocks are too few.
    """
    if len(blocks) < num_batches * batch_size:
        raise ValueError(
            f"{num_batches} batches of {batch_size} rows need {num_batches * batch_size} blocks, and the text has "
            f"{len(blocks)}; lower num_batches or batch_size"
        )
    order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(seed))[: num_batches * batch_size]
    rows = blocks.select(order.tolist()).with_format("torch")
    batches: Sequence[Any] = [
        {name: rows[start : start + batch_size][name] for name in ("input_ids", "labels")}
        for start in range(0, len(rows), batch_size)
    ]
    entries = []
    for step, folder in checkpoints.items():
        with without_bars_of_files():
            model = load(folder)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            values = [gradient_diversity(model, batch, dropout=dropout) for batch in batches]
        mean, error = mean_and_standard_error(values)
        entries.append({"step": step, "gradient_diversity": mean, "standard_error": error})
    return entries
