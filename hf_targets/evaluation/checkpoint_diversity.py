"""Gradient diversity at the checkpoints that the runs of an experiment left."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.trainer_pt_utils import LabelSmoother
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hf_targets.backbones.positions import position_limit
from hf_targets.backbones.reformer import repair_reformer
from hf_targets.data.tokenization import tokenizer_fingerprint
from hf_targets.evaluation.gradient_diversity import gradient_diversity
from hf_targets.evaluation.smoothed_loss import SmoothedLoss
from hf_targets.maths.statistics import mean_and_standard_error
from hf_targets.named_models import model_at
from hf_targets.training.brief_log import without_bars_of_files
from hf_targets.training.checkpoints import is_whole_model
from hf_targets.training.seeds import run_folder


def run_checkpoints(experiment: Path, name: str, seed: int) -> dict[int, Path]:
    """Return the checkpoints of a run by their steps, the earliest first; those that are not whole are left out.

    Raises:
        ValueError: If there are none.
    """
    folder = experiment / run_folder(name, seed)
    found = {
        int(match[1]): path
        for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*")
        if (match := re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", path.name)) and is_whole_model(path)
    }
    if not found:
        raise ValueError(
            f"{folder} has no whole checkpoints; name a run of the experiment, and train it with a save_total_limit "
            "that keeps them"
        )
    return dict(sorted(found.items()))


def load_causal(folder: Path) -> Any:
    """Return the causal model of a checkpoint."""
    with without_bars_of_files():
        return repair_reformer(AutoModelForCausalLM.from_pretrained(folder))


def tokenizer_of_runs(checkpoints: dict[Path, Path], block_size: int) -> PreTrainedTokenizerBase:
    """Return the tokenizer of runs, which they must share, so that all are measured on the same tokens.

    Args:
        checkpoints: A checkpoint of each run, by the run's folder, where its tokenizer is, or above it.
        block_size: Tokens that each model must read.
    Raises:
        ValueError: If a run has no tokenizer or another's, or a model is not causal or reads fewer tokens.
    """
    tokenizers = {}
    for run, checkpoint in checkpoints.items():
        _check_causal(checkpoint, block_size)
        where = run if any(run.glob("tokenizer*")) else run.parent  # some recipes save one for all of their runs
        with model_at(run, "tokenizer of a finished run", "train it to its end, which saves its tokenizer"):
            tokenizers[run] = AutoTokenizer.from_pretrained(where)
    first, *others = tokenizers
    for run in others:
        if tokenizer_fingerprint(tokenizers[run]) != tokenizer_fingerprint(tokenizers[first]):
            raise ValueError(
                f"runs must have the same tokenizer, to be measured on the same tokens, and {first} and {run} have "
                "not; measure one at a time"
            )
    return tokenizers[first]


def _check_causal(checkpoint: Path, block_size: int) -> None:
    config = AutoConfig.from_pretrained(checkpoint)
    names = config.architectures or []
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except ValueError:  # there is no causal model of this kind
        model = None
    if model is None or type(model).__name__ not in names:
        raise ValueError(
            f"checkpoints are measured on the next tokens of a text, which takes a causal model, and {checkpoint} is "
            f"a {', '.join(names)}; log the diversity of others while they train (--gradient_diversity_steps)"
        )
    limit = position_limit(model)
    if limit is not None and limit < block_size:
        raise ValueError(
            f"block_size must be at most the {limit} positions of {checkpoint}, got {block_size}; lower it"
        )


def checkpoint_diversities(
    checkpoints: dict[int, Path],
    load: Callable[[Path], Any],
    blocks: Dataset,
    *,
    num_batches: int,
    batch_size: int,
    seed: int = 0,
    dropout: bool = True,
    label_smoothing: float = 0.0,
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
        label_smoothing: The share of the uniform distribution in the targets of the loss.
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
        model, smoothed = load(folder), {}
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
