"""Training and evaluation of AWD-LSTMs on one long text, whose state goes on from batch to batch."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

from datasets import Dataset
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from transformers import Cache, DynamicCache, PreTrainedModel, TrainerCallback
from transformers.trainer_utils import IntervalStrategy

from hf_targets.awd_lstm.layers import as_lstm_cache, lstm_layers
from hf_targets.awd_lstm.model import AwdLstmForCausalLM
from hf_targets.awd_lstm.streams import SegmentSampler, StreamRows, TextStream, segment_lengths
from hf_targets.backbones.configuration import check_ranges
from hf_targets.backbones.new_parts import unwrapped
from hf_targets.maths.losses import perplexity
from hf_targets.training.arguments import TargetTrainingArguments
from hf_targets.training.averaging import AveragedTrainer, AveragingCallback
from hf_targets.training.streams import whole
from hf_targets.training.token_batches import EpochCallback

logger = logging.getLogger(__name__)
_NAMES = "keys", "values"


@dataclass
class AwdLstmTrainingArguments(TargetTrainingArguments):
    """Arguments of `AwdLstmTrainer`; the defaults are the published ones."""

    bptt: int = field(
        default=70,
        metadata={
            "help": "Mean tokens of a training segment, through which gradients flow; the learning rate of a step is "
            "multiplied by the segment's tokens / bptt."
        },
    )
    nonmonotone_interval: int | None = field(
        default=5,
        metadata={
            "help": "n: the mean of the weights begins once an evaluation is worse than the best of those that are "
            "more than n evaluations old. None: no mean."
        },
    )
    average_from_start: bool = field(
        default=False,
        metadata={
            "help": "Finetuning of a trained model: the mean of the weights begins with the first step, and training "
            "stops once evaluations no longer get better."
        },
    )
    eval_streams: int = field(
        default=10,
        metadata={"help": "Rows in which an evaluation reads its text side by side, on all devices together."},
    )
    optim: str = "sgd"
    learning_rate: float = 30.0
    lr_scheduler_type: str = "constant"
    max_grad_norm: float = 0.25
    weight_decay: float = 1.2e-6

    def __post_init__(self) -> None:
        check_ranges(self, {"bptt": 1, "eval_streams": 1, "nonmonotone_interval": 1})
        if self.average_from_start and self.nonmonotone_interval is None:
            raise ValueError("average_from_start needs a nonmonotone_interval, after which training stops; give one")
        super().__post_init__()


def no_longer_better(losses: Sequence[float], interval: int) -> bool:
    """Return whether the last loss is above the best of the losses before the `interval` most recent other ones.

    >>> no_longer_better([5.0, 4.0, 4.1], 1), no_longer_better([5.0, 4.0, 4.1, 4.05], 1)
    (False, True)
    """
    earlier = losses[:-1][: -interval or None]
    return bool(earlier) and losses[-1] > min(earlier)


class SegmentRate(TrainerCallback):
    """Gives each step a learning rate in proportion to the length of its segment."""

    def __init__(self, bptt: int) -> None:
        self.bptt = bptt
        self._rates: list[Any] = []

    def set(self, optimizer: Optimizer, length: int) -> None:
        """Change the rate before the step's first backward pass, as DeepSpeed takes the step in its last one."""
        if not self._rates:
            self._rates = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * length / self.bptt

    def on_optimizer_step(self, *args: Any, optimizer: Optimizer, **kwargs: Any) -> None:
        """Change it back, for the scheduler."""
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate
        self._rates = []

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Forget the rates of a training that broke off in a step."""
        self._rates = []


class AwdLstmTrainer(AveragedTrainer):
    """Trainer of `AwdLstmForCausalLM` on text without breaks.

    Data sets have the blocks of one text, in order, as `hf_targets.pack_blocks` makes them; the length of the blocks
    has no effect, and a stream is read into memory. They are joined and cut into as many rows as all batches of a step
    have, which are read side by side in segments of about `bptt` tokens. The state goes on from segment to segment.
    Gradients do not.

    An evaluation reads its text in `eval_streams` rows, and reports `loss`, the mean over all targets, `perplexity`,
    and `word_perplexity` if the data has `num_words`.

    Once evaluations no longer get better, the mean of the weights is what is evaluated, saved and left in the model.

    Raises:
        ValueError: If the model is of another class, the batch size is to be found, one process has several GPUs, there
            are several evaluation texts to begin a mean by, or the data is not one text.
    Source: Merity et al., "Regularizing and Optimizing LSTM Language Models", sections 3 and 4; salesforce/awd-lstm-lm.
    Departs: The published program draws the lengths of segments anew in each epoch; here they are drawn once, and each
        epoch has them in another order. It drops the end of the text that does not fill all rows; here the last rows
        are shorter. It multiplies the rate of a cut segment by the length that was drawn, we by its own. Its
        finetuning caps segments at `bptt` + 10. Its evaluations divide by all positions, although the last has no
        target. It leaves the checkpoint of the lowest loss, as we do with `load_best_model_at_end`.
    """

    args: AwdLstmTrainingArguments
    shifts_labels = False

    def __init__(self, model: PreTrainedModel | nn.Module, args: AwdLstmTrainingArguments, **kwargs: Any) -> None:
        if not isinstance(core := unwrapped(model), AwdLstmForCausalLM):
            raise ValueError(f"the model must be an AwdLstmForCausalLM, got a {type(core).__name__}")
        if not isinstance(args, AwdLstmTrainingArguments):
            raise ValueError(f"args must be AwdLstmTrainingArguments, got {type(args).__name__}")
        if args.n_gpu > 1 or args.auto_find_batch_size:
            raise ValueError(
                f"a state stays with the rows of its process: use one GPU a process, got {args.n_gpu} (accelerate "
                f"launch), and auto_find_batch_size=False, got {args.auto_find_batch_size}"
            )
        kwargs["train_dataset"] = whole(kwargs.get("train_dataset"))  # to be cut into rows that are read side by side
        super().__init__(model, args, **kwargs)
        if args.nonmonotone_interval is not None and isinstance(self.eval_dataset, dict):
            raise ValueError("the mean of the weights begins by one evaluation text; give one, or no interval")
        self._states: dict[int, Cache] = {}
        self._evaluated: dict[int, Cache] = {}
        self._rate = SegmentRate(args.bptt)
        self.add_callback(self._rate)

    def _make_averaging(self) -> AveragingCallback | None:
        if self.args.nonmonotone_interval is None:
            return None
        return AveragingCallback(None, from_start=self.args.average_from_start)

    def get_train_dataloader(self) -> DataLoader:
        """Return the loader of the training text: for each segment one batch of each group of this process's rows."""
        args, processes = self.args, self.args.world_size
        size, num_groups = args.per_device_train_batch_size, args.gradient_accumulation_steps
        starts = [(group * processes + args.process_index) * size for group in range(num_groups)]
        groups = [range(start, start + size) for start in starts]
        stream = TextStream.of_blocks(cast(Dataset, self.train_dataset), "train")
        rows = StreamRows(stream, size * num_groups * processes, groups)
        seed = args.seed if args.data_seed is None else args.data_seed
        sampler = SegmentSampler(segment_lengths(rows.length, args.bptt, seed), num_groups, seed)
        self.remove_callback(EpochCallback)  # of an earlier call of `train`
        self.add_callback(EpochCallback(sampler))
        return self._loader(rows, sampler)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Return the loader of a text to evaluate: this process's rows of `eval_streams`, segment by segment."""
        dataset: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        dataset = cast(Any, self.eval_dataset)[dataset] if isinstance(dataset, str) else dataset
        args, stream = self.args, TextStream.of_blocks(dataset, "evaluation")
        num_rows = min(args.eval_streams, len(stream.ids))
        size = -(-num_rows // args.world_size)
        rows = StreamRows(stream, num_rows, [range(size * args.process_index, size * (args.process_index + 1))])
        return self._loader(rows, SegmentSampler(segment_lengths(rows.length, args.bptt, None), 1, None))

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """Return the loader of a text to predict, as for an evaluation."""
        return self.get_eval_dataloader(test_dataset)

    def _loader(self, rows: StreamRows, sampler: SegmentSampler) -> DataLoader:
        workers, pins = self.args.dataloader_num_workers, self.args.dataloader_pin_memory
        first: Any = itemgetter(0)  # a segment is a batch already
        return DataLoader(
            rows, batch_sampler=cast(Any, sampler), collate_fn=first, num_workers=workers, pin_memory=pins
        )

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as Trainer does; each epoch begins with a state of 0."""
        if self._averaging is not None and self.args.eval_strategy == IntervalStrategy.NO:
            logger.warning(
                "The mean of the weights waits for evaluations; set eval_strategy or no nonmonotone_interval"
            )
        self._states.clear()
        return super().train(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate; in training begin the mean once evaluations no longer get better, or stop if it began with it."""
        found = super().evaluate(*args, **kwargs)
        if self.is_in_train and self._averaging is not None and self._is_no_longer_better():
            if self._averaging.from_start:
                self.control.should_training_stop = True
            else:
                self._averaging.begin(cast(nn.Module, self.model))
        return found

    def _is_no_longer_better(self) -> bool:
        interval, log = self.args.nonmonotone_interval, self.state.log_history
        seen = [entry["eval_loss"] for entry in log if "eval_loss" in entry and entry["step"]]  # not before the first
        return interval is not None and no_longer_better(seen, interval)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Compute gradients, for a step at the rate of its segment; all batches of a step are of one segment."""
        self._rate.set(cast(Optimizer, self.optimizer), inputs["input_ids"].shape[1])
        return super().training_step(model, inputs, *args, **kwargs)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Compute the loss of a segment, from the state after the segment before."""
        return super().compute_loss(model, self._from_state(inputs, self._states), *args, **kwargs)

    def row_losses(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, each row's negative log-likelihood (rows, 1), and each row's number of targets."""
        outputs = model(**self._from_state(inputs, self._evaluated))
        return self._losses_of(outputs, inputs["labels"])

    def _from_state(self, inputs: dict[str, Any], states: dict[int, Cache]) -> dict[str, Any]:
        """Return the model's arguments for a batch, with the state of its rows among them."""
        inputs = dict(inputs)
        segment = inputs.pop("segment")
        if segment["begins"]:
            states[segment["group"]] = DynamicCache()
        state = states[segment["group"]]
        for layer in lstm_layers(state):
            layer.detach()
        return {**inputs, "shift_labels": inputs.pop("labels"), "past_key_values": state, "use_cache": True}

    def metrics(self, losses: Tensor, num_tokens: int, num_words: int) -> dict[str, float]:
        """Return the mean loss of all targets, and the perplexities by tokens and by words."""
        total = losses[:, 0].sum().item()
        found = {"loss": total / num_tokens, "perplexity": perplexity(total / num_tokens)}
        return {**found, "word_perplexity": perplexity(total / num_words)} if num_words else found

    def has_ended(self, max_steps: int) -> bool:
        """Return whether a training has come to its end, or a finetuning to the one that its evaluations set."""
        return (self.args.average_from_start and self._is_no_longer_better()) or super().has_ended(max_steps)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the names of all parameters: the published program lets biases decay, too."""
        return [name for name, _ in model.named_parameters()]

    @property
    def checkpoint_files(self) -> set[str]:
        """What a checkpoint has beside what Trainer writes: the states of the rows of each process."""
        inherited: Any = super()
        return {*inherited.checkpoint_files, *(_state_file(number) for number in range(self.args.world_size))}

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        tensors = {
            f"{group}.{index}.{name}": getattr(layer, name).detach().contiguous()
            for group, state in self._states.items()
            for index, layer in enumerate(lstm_layers(state))
            for name in _NAMES
        }
        save_file(tensors, Path(output_dir) / _state_file(self.args.process_index))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        if checkpoint is None:
            return
        args, num_layers = self.args, cast(Any, unwrapped(cast(nn.Module, self.model))).config.num_hidden_layers
        file, groups = Path(checkpoint) / _state_file(args.process_index), range(args.gradient_accumulation_steps)
        tensors = load_file(file) if file.is_file() else {}
        num_rows = args.per_device_train_batch_size
        names = {f"{group}.{index}.{name}" for group in groups for index in range(num_layers) for name in _NAMES}
        if tensors.keys() != names or {len(tensor) for tensor in tensors.values()} != {num_rows}:
            raise ValueError(
                f"{checkpoint} has no state for {len(groups)} batches of {num_rows} rows of process "
                f"{args.process_index}; resume with the batch size, accumulation and processes it was saved with, and "
                "without save_only_model"
            )
        self._states = {group: as_lstm_cache(None, num_layers) for group in groups}
        for group, state in self._states.items():
            for index, layer in enumerate(lstm_layers(state)):
                layer.update(*(tensors[f"{group}.{index}.{name}"] for name in _NAMES), 0)


def _state_file(process_index: int) -> str:
    return f"carried_state_{process_index}.safetensors"
