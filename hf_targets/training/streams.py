"""Training on a stream of unknown length, which a resumed training goes on with where it was."""

# pyright: reportAttributeAccessIssue=false
# (`StreamLoading` is a mixin: the Trainer has the rest)

import json
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerState, TrainingArguments

from hf_targets.training.stream_loader import StreamLoader


def whole(data: Any) -> Any:
    """Return what an evaluation reads: a stream as a data set in memory, each stream of a mapping too, others as given.

    Its rows are then counted, checked, and shared among processes as those of any data set.
    """
    if isinstance(data, dict):
        return {name: whole(part) for name, part in data.items()}
    if not isinstance(data, IterableDataset):
        return data
    return Dataset.from_list(list(data.with_format(None)), features=data.features)


class _StepsAsEpoch(TrainerCallback):
    """Tells how much of a training on a stream is done: Trainer would count from where it was resumed."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, *others: Any, **kwargs: Any) -> None:
        """Tell it."""
        state.epoch = state.global_step / state.max_steps


class StreamLoading:
    """Loading of a Trainer's training data if it is a `datasets.IterableDataset`; write it before the Trainer.

    - A checkpoint has the state of the stream. A resumed training goes on from there, without reading what was before,
      with the same rows as an unbroken one.
    - Several processes share the shards of the stream if their number is a multiple of the processes', and otherwise
      its rows; each row is read once in a pass.
    - `shuffle_buffer_size` rows are shuffled at a time, in each pass in another way.
    - A stream that ends before `max_steps` is read again, with a warning. It is no error, as the work of all steps
      before would be lost, and as Trainer reads a data set again, too.
    - A resumed training that had come to its end, early too, is not repeated, on a data set neither.

    Streams of other libraries, `dispatch_batches=True` and parallelism beside that of data stay with accelerate.
    """

    shuffle_buffer_size: int | None = None
    """Of a trainer whose arguments have none; None: that of its arguments."""
    _stream_loader: StreamLoader | None = None

    @property
    def _reads_stream(self) -> bool:
        is_left = self.args.accelerator_config.dispatch_batches or self.accelerator.parallelism_config is not None
        return isinstance(self.train_dataset, IterableDataset) and not is_left

    def get_train_dataloader(self) -> Any:
        """Return the loader of the training data."""
        if not self._reads_stream:
            return super().get_train_dataloader()
        args = self.args
        if args.world_size > 1 and self.train_dataset._distributed is not None:
            raise ValueError("the stream is split among processes already; give the whole stream, which is split here")
        names = ("num_workers", "pin_memory", "prefetch_factor", "multiprocessing_context")
        self._stream_loader = StreamLoader(
            self.train_dataset,
            self.data_collator,
            self._get_collator_with_removed_columns(self.data_collator, description="training"),
            batch_size=self._train_batch_size,
            block_size=self.shuffle_buffer_size or getattr(args, "shuffle_buffer_size", None) or 1,
            drop_last=args.dataloader_drop_last,
            seed=args.seed if args.data_seed is None else args.data_seed,
            rank=args.process_index,
            num_processes=args.world_size,
            options={name: getattr(args, f"dataloader_{name}", None) for name in names},
        )
        return self._stream_loader

    def train(self, resume_from_checkpoint: str | bool | None = None, *others: Any, **kwargs: Any) -> Any:
        """Train as Trainer does; a stream goes on from its state, and no batch of it is read to be skipped."""
        if self._reads_stream:
            self.pop_callback(_StepsAsEpoch)
            self.add_callback(_StepsAsEpoch)
        return super().train(resume_from_checkpoint, *others, **kwargs)

    def has_ended(self, max_steps: int) -> bool:
        """Return whether a training that is resumed in this state had come to its end, early too."""
        stopped = (one.early_stopping_patience_counter >= one.early_stopping_patience for one in self._early_stopping)
        return any(stopped) or self.state.global_step >= max_steps

    @property
    def _early_stopping(self) -> list[EarlyStoppingCallback]:
        return [one for one in self.callback_handler.callbacks if isinstance(one, EarlyStoppingCallback)]

    def _init_training_state(
        self, max_steps: int, num_steps: int, num_epochs: int, checkpoint: str | None, *others: Any
    ) -> tuple[int, int]:
        """Return how many epochs and batches a resumed training begins after: all epochs if it had ended."""
        given = self._early_stopping
        epochs, batches = super()._init_training_state(max_steps, num_steps, num_epochs, checkpoint, *others)
        for restored, one in zip(self._early_stopping, given, strict=True):  # with the count of the checkpoint alone
            restored.early_stopping_patience = one.early_stopping_patience
            restored.early_stopping_threshold = one.early_stopping_threshold
        if checkpoint is not None and self.has_ended(max_steps):
            return num_epochs, 0
        return epochs, 0 if self._reads_stream else batches

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if self._stream_loader is not None:
            file = Path(output_dir, _state_file(self.args.process_index))
            file.write_text(json.dumps(self._stream_loader.state()), encoding="utf-8")

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        if checkpoint is None or self._stream_loader is None or self.args.ignore_data_skip:
            return
        file = Path(checkpoint, _state_file(self.args.process_index))
        if not file.is_file():
            raise ValueError(
                f"{checkpoint} has no {file.name}, the position in the stream to go on from; resume with as many "
                "processes as it was saved with, without save_only_model, or begin anew with ignore_data_skip"
            )
        self._stream_loader.load(json.loads(file.read_text(encoding="utf-8")))


def _state_file(process_index: int) -> str:
    return f"stream_state_{process_index}.json"
