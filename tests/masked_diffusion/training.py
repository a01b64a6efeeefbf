"""A small trainer of a tiny masked diffusion model, and rows for it, masked already or not."""

import torch
from datasets import Dataset
from torch.utils.data import SequentialSampler

from hf_targets.masked_diffusion.perplexity_bound import PerplexityBound, perplexity_bound
from hf_targets.masked_diffusion.trainer import DiffusionTrainer, DiffusionTrainingArguments
from hf_targets.maths.losses import IGNORED
from hf_targets.maths.noise import mask_tokens
from tests.masked_diffusion.models import MASK, clean_ids, make_mdlm
from tests.trainer_runs import SHORT


def blocks(rows: int, length: int = 12, seed: int = 0) -> Dataset:
    """Return rows of different numbers of targets: some have padding, some given tokens, all predict their first."""
    ids = clean_ids(rows, length, seed=seed)
    mask, labels = torch.ones_like(ids), ids.clone()
    for row in range(rows):
        mask[row, length - row % 4 :] = 0
        labels[row, 3 : 3 + row % 3] = IGNORED
    columns = {"input_ids": ids, "attention_mask": mask, "labels": labels, "num_words": torch.full((rows,), 4)}
    return Dataset.from_dict({name: column.tolist() for name, column in columns.items()})


def masked_blocks(rows: int, seed: int = 0) -> Dataset:
    """Return such rows masked already, at times of their own, so that the model draws nothing."""
    columns = {name: torch.tensor(column[:]) for name, column in blocks(rows, seed=seed).to_dict().items()}
    times = torch.linspace(0.1, 1, rows)
    may = (columns["labels"] != IGNORED) & (columns["attention_mask"] == 1)
    generator = torch.Generator().manual_seed(seed)
    columns["input_ids"] = mask_tokens(
        columns["input_ids"], times[:, None], may, MASK, make_mdlm().schedule, generator=generator
    )
    return Dataset.from_dict({**{name: c.tolist() for name, c in columns.items()}, "timesteps": times.tolist()})


class InOrder(DiffusionTrainer):
    """Takes the rows as they come, so that batches of any size have the same."""

    def _get_train_sampler(self, *args):
        return SequentialSampler(self.train_dataset)


def make_trainer(folder, model=None, train=None, evaluation=None, kind=DiffusionTrainer, tokenizer=None, **arguments):
    collator, callbacks = arguments.pop("data_collator", None), arguments.pop("callbacks", None)
    options = {**SHORT, **arguments}
    return kind(
        model=make_mdlm() if model is None else model,
        args=DiffusionTrainingArguments(output_dir=str(folder), **options),
        data_collator=collator,
        callbacks=callbacks,
        train_dataset=blocks(32) if train is None else train,
        eval_dataset=blocks(7, seed=1) if evaluation is None else evaluation,
        processing_class=tokenizer,
    )


def bound(model, rows: Dataset, draws: int = 1, seed: int = 0) -> PerplexityBound:
    return perplexity_bound(model, rows, num_draws=draws, seed=seed)
