"""Loading of pairs in batches of about as many tokens each, and the epoch that their order depends on."""

# pyright: reportAttributeAccessIssue=false
# (a mixin: the Trainer has the rest)

from typing import Any, cast

from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainerState

from hf_targets.data.batches import TokenBatchSampler
from hf_targets.data.pair_encoding import pair_lengths


class EpochCallback(TrainerCallback):
    """Tells batches their epoch, also in the epoch that a run of several processes resumes: accelerate does not."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self._epoch: int | None = None

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Begin to count."""
        self._epoch = None

    def on_epoch_begin(self, args: Any, state: TrainerState, *others: Any, **kwargs: Any) -> None:
        """Choose the order of the epoch that begins, or goes on; `state.epoch` does not count those of a stream."""
        self._epoch = int((state.epoch or 0.0) + 1e-6) if self._epoch is None else self._epoch + 1
        self.sampler.set_epoch(self._epoch)


class TokenBatchLoading:
    """Loaders of a Trainer whose arguments are `TokenBatchArguments`; write it before the Trainer among the bases."""

    @property
    def loads_whole_pairs(self) -> bool:
        """Whether evaluations take batches of pairs whatever their tokens."""
        return False

    def get_train_dataloader(self) -> DataLoader:
        """Return the loader of the training data, with batches of about as many tokens each if they are asked for."""
        if self.args.tokens_per_batch is None:
            return super().get_train_dataloader()
        return self._token_batches(self.train_dataset, shuffle=True)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Return the loader of an evaluation's data, in batches of about as many tokens each if they are asked for.

        Not so for generation, which keeps the pairs' order, and for several processes: pairs that two of them evaluate,
        so that each has as many batches, are told only among batches of equal numbers of pairs.
        """
        by_pairs = self.args.tokens_per_batch is None or self.loads_whole_pairs
        if by_pairs or self.accelerator.num_processes > 1:
            return super().get_eval_dataloader(eval_dataset)
        known: Any = self.eval_dataset
        dataset = (
            known[eval_dataset] if isinstance(eval_dataset, str) else known if eval_dataset is None else eval_dataset
        )
        return self._token_batches(dataset, shuffle=False)

    def _token_batches(self, dataset: Any, *, shuffle: bool) -> DataLoader:
        if not isinstance(dataset, Dataset):
            raise ValueError(
                f"tokens_per_batch needs the length of each pair, and the data is a {type(dataset).__name__}; give a "
                "datasets.Dataset, or leave out tokens_per_batch"
            )
        args, collate = self.args, self.data_collator
        sampler = TokenBatchSampler(
            pair_lengths(dataset),
            args.tokens_per_batch,
            shuffle=shuffle,
            seed=args.seed if args.data_seed is None else args.data_seed,
        )
        if shuffle:
            self.remove_callback(EpochCallback)  # of an earlier call of `train`
            self.add_callback(EpochCallback(sampler))
        dataset = self._remove_unused_columns(dataset, description="training" if shuffle else "evaluation")
        loader = DataLoader(
            cast(Any, dataset),
            batch_sampler=sampler,
            collate_fn=collate,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
        )
        return self.accelerator.prepare_data_loader(loader)
