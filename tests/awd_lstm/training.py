"""Tiny trainings of AWD-LSTMs."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from hf_targets import AwdLstmTrainer, AwdLstmTrainingArguments
from tests.awd_lstm.models import make_awd_lstm
from tests.tiny_backbones import token_ids
from tests.trainer_runs import SHORT


def text_blocks(num_rows: int, length: int = 14, seed: int = 0, first: int = 1) -> Dataset:
    """Return so many blocks of one text of five words, each beginning with the last token of the one before.

    Args:
        first: The first of the words.
    """
    ids = (token_ids(1, num_rows * (length - 1) + 1, seed=seed)[0] % 5 + first).numpy()
    rows = np.lib.stride_tricks.sliding_window_view(ids, length)[:: length - 1].tolist()
    columns = {"input_ids": rows, "labels": rows, "attention_mask": [[1] * length] * num_rows}
    return Dataset.from_dict({**columns, "num_words": [4] * num_rows})


def make_trainer(folder: Path, model: Any = None, **arguments: Any) -> AwdLstmTrainer:
    """Return a trainer of a tiny model."""
    callbacks = arguments.pop("callbacks", None)
    rows = arguments.pop("rows", None)
    evaluated = arguments.pop("eval_dataset", text_blocks(7, seed=1))
    options = {**SHORT, "report_to": "none", "optim": "sgd", "bptt": 8, **arguments}
    return AwdLstmTrainer(
        model=make_awd_lstm() if model is None else model,
        args=AwdLstmTrainingArguments(output_dir=str(folder), **options),
        train_dataset=text_blocks(32) if rows is None else rows,
        eval_dataset=evaluated,
        callbacks=callbacks,
    )


def lone_nll(model: Any, blocks: Dataset, num_rows: int) -> torch.Tensor:
    """Return the summed negative log-likelihood of a text that is read in so many rows, each at once."""
    ids = torch.tensor([block["input_ids"][:-1] for block in blocks]).flatten()
    targets = torch.tensor([block["labels"][1:] for block in blocks]).flatten()
    length, total = -(-len(ids) // num_rows), torch.zeros(())
    for start in range(0, len(ids), length):
        logits = model(ids[None, start : start + length]).logits[0]
        total = total + torch.nn.functional.cross_entropy(logits, targets[start : start + length], reduction="sum")
    return total.detach()
