"""Training and evaluation of AWD-LSTMs on one long text, whose state goes on from batch to batch."""

import logging
from pathlib import Path
from typing import Any, cast

from accelerate.optimizer import AcceleratedOptimizer
from datasets import Dataset
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from transformers import Cache, DynamicCache, PreTrainedModel, TrainerState
from transformers.trainer_utils import IntervalStrategy

from hf_targets.awd_lstm.arguments import AwdLstmTrainingArguments
from hf_targets.awd_lstm.averaged_sgd import NonMonotoneTrigger, evaluated, no_longer_better
from hf_targets.awd_lstm.model import AwdLstmForCausalLM
from hf_targets.awd_lstm.state import as_lstm_cache, lstm_layers
from hf_targets.awd_lstm.streams import SegmentSampler, StreamRows, TextStream, segment_lengths
from hf_targets.backbones.new_parts import unwrapped
from hf_targets.maths.losses import perplexity
from hf_targets.training.averaged_trainer import AveragedTrainer
from hf_targets.training.averaging import AveragingCallback, MeanOfWeights
from hf_targets.training.epochs import EpochCallback
from hf_targets.training.weak_methods import WeaklyBound

logger = logging.getLogger(__name__)


class AwdLstmTrainer(AveragedTrainer):
    """Trainer of `AwdLstmForCausalLM` on text without breaks.

    Data sets have the blocks of one text, in order, as `hf_targets.pack_blocks` makes them; the length of the blocks
    has no effect. They are joined and cut into as many rows as all batches of a step have, which are read side by side
    in segments of about `bptt` tokens. The state goes on from segment to segment. Gradients do not.

    An evaluation reads its text in `eval_streams` rows, and reports `loss`, the mean over all targets, `perplexity`,
    and `word_perplexity` if the data has `num_words`.

    Once evaluations no longer get better, the mean of the weights is what is evaluated, saved and left in the model.

    Raises:
        ValueError: If the model or the arguments are of another class, the batch size is to be found, one process has
            several GPUs, there are several evaluation texts to begin a mean by, or the blocks of a data set are not one
            text.
    Source: Merity et al., "Regularizing and Optimizing LSTM Language Models", sections 3 and 4; salesforce/awd-lstm-lm.
    Departs: The published program draws the lengths of segments anew in each epoch, so that epochs have different
        numbers of steps. Here they are drawn once, and each epoch has them in another order. It drops the end of the
        text that does not fill all rows; here the last rows are shorter. It multiplies the rate of a cut segment by
        the length that was drawn, we by its own. It leaves the checkpoint of the lowest loss, as we do with
        `load_best_model_at_end`, and keeps the model it begins with if no finetuned one is better.
    """

    args: AwdLstmTrainingArguments
    averaging_setting = "nonmonotone_interval"

    def __init__(self, model: PreTrainedModel | nn.Module, args: AwdLstmTrainingArguments, **kwargs: Any) -> None:
        if not isinstance(unwrapped(model), AwdLstmForCausalLM):
            raise ValueError(f"an AwdLstmTrainer trains AwdLstmForCausalLM, got {type(unwrapped(model)).__name__}")
        if not isinstance(args, AwdLstmTrainingArguments):
            raise ValueError(f"args must be AwdLstmTrainingArguments, got {type(args).__name__}")
        if args.n_gpu > 1:
            raise ValueError(
                f"the state of the rows stays with their process, so each process needs one GPU, got {args.n_gpu}; "
                "start with accelerate launch, or choose one with CUDA_VISIBLE_DEVICES"
            )
        if args.auto_find_batch_size:
            raise ValueError("auto_find_batch_size would cut the text into other rows in mid-training; leave it out")
        super().__init__(model, args, **kwargs)
        if args.nonmonotone_interval is not None and isinstance(self.eval_dataset, dict):
            raise ValueError(
                f"the mean of the weights begins by one evaluation text, got {', '.join(self.eval_dataset)}; give one, "
                "or set nonmonotone_interval=None"
            )
        self._loss_shifts_labels = False  # each label is the token after its position
        self._states: dict[int, Cache] = {}
        self._evaluated: dict[int, Cache] = {}
        self._segment = args.bptt
        self._scaled: Optimizer | None = None
        self._rates: list[Any] = []
        if self._averaging is not None and args.nonmonotone_interval is not None:
            self.add_callback(NonMonotoneTrigger(self._averaging, args.nonmonotone_interval))

    def _make_averaging(self) -> AveragingCallback | None:
        if self.args.nonmonotone_interval is None:
            return None
        return AveragingCallback(MeanOfWeights, from_start=self.args.average_from_start)

    def _check_dataset(self, dataset: Any, name: str) -> None:
        super()._check_dataset(dataset, name)
        if dataset is not None and not isinstance(dataset, Dataset | str):
            raise ValueError(
                f"the {name} data must be a datasets.Dataset, whose blocks are joined to one text, got "
                f"{type(dataset).__name__}"
            )

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
        known: Any = self.eval_dataset
        dataset = (
            known[eval_dataset] if isinstance(eval_dataset, str) else known if eval_dataset is None else eval_dataset
        )
        args, stream = self.args, TextStream.of_blocks(dataset, "evaluation")
        num_rows = min(args.eval_streams, len(stream.ids))
        size = -(-num_rows // args.world_size)
        rows = StreamRows(stream, num_rows, [range(size * args.process_index, size * (args.process_index + 1))])
        return self._loader(rows, SegmentSampler(segment_lengths(rows.length, args.bptt, None), 1, None))

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """Return the loader of a text to predict, as for an evaluation."""
        return self.get_eval_dataloader(test_dataset)

    def _loader(self, rows: StreamRows, sampler: SegmentSampler) -> DataLoader:
        return DataLoader(
            rows,
            batch_sampler=cast(Any, sampler),
            collate_fn=_only,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
        )

    def _targets(self, labels: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None) -> Tensor:
        return labels

    def _row_targets(self, labels: Tensor) -> Tensor:
        return labels

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as Trainer does; each epoch begins with a state of 0."""
        if self._averaging is not None and self.args.eval_strategy == IntervalStrategy.NO:
            logger.warning(
                "There are no evaluations, by which the mean of the weights would %s; set eval_strategy='epoch', or "
                "nonmonotone_interval=None",
                "end training" if self._averaging.from_start else "begin",
            )
        self._states.clear()
        return super().train(*args, **kwargs)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Compute the loss of a segment, from the state after the segment before."""
        if "segment" not in inputs:
            raise ValueError("a batch needs its segment of the text, which the loaders of this trainer give it")
        self._segment = inputs["input_ids"].shape[1]
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

    def has_ended(self, state: TrainerState) -> bool:
        """Return whether a training has come to its end, or a finetuning to the one that its evaluations set."""
        interval = self.args.nonmonotone_interval
        if self.args.average_from_start and interval is not None and no_longer_better(evaluated(state), interval):
            return True
        return super().has_ended(state)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the names of all parameters: the published program lets biases decay, too."""
        return [name for name, _ in model.named_parameters()]

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Create the optimizer, each of whose steps has a learning rate in proportion to the length of its segment."""
        optimizer = super().create_optimizer(model)
        while isinstance(optimizer, AcceleratedOptimizer):  # of an earlier call of `train`
            optimizer = optimizer.optimizer
        if self._scaled is not optimizer:
            self._scaled = optimizer
            optimizer.register_step_pre_hook(WeaklyBound(self._shorten, is_needed=False))
            optimizer.register_step_post_hook(WeaklyBound(self._restore, is_needed=False))
        return cast(Optimizer, self.optimizer)

    def _shorten(self, optimizer: Optimizer, *_: Any) -> None:
        self._rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * self._segment / self.args.bptt

    def _restore(self, optimizer: Optimizer, *_: Any) -> None:
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate

    @property
    def checkpoint_files(self) -> set[str]:
        """What a checkpoint has beside what Trainer writes: the states of the rows of each process."""
        return {*super().checkpoint_files, *(_state_file(number) for number in range(self.args.world_size))}

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        tensors = {
            f"{group}.{index}.{name}": getattr(layer, name).detach().contiguous()
            for group, state in self._states.items()
            for index, layer in enumerate(lstm_layers(state))
            for name in ("keys", "values")
        }
        save_file(tensors, Path(output_dir) / _state_file(self.args.process_index))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        if checkpoint is None:
            return
        file, groups = Path(checkpoint) / _state_file(self.args.process_index), self.args.gradient_accumulation_steps
        tensors = load_file(file) if file.is_file() else {}
        found = {int(name.split(".")[0]) for name in tensors}, {len(tensor) for tensor in tensors.values()}
        if found != (set(range(groups)), {self.args.per_device_train_batch_size}):
            raise ValueError(
                f"{checkpoint} has no state for {groups} batches of {self.args.per_device_train_batch_size} rows of "
                f"process {self.args.process_index}; resume with the batch size, the gradient accumulation and the "
                "processes that it was saved with, and save without save_only_model"
            )
        tensors = {name: tensor.to(self.args.device) for name, tensor in tensors.items()}
        self._states = {}
        for group in sorted({int(name.split(".")[0]) for name in tensors}):
            own = {name: tensor for name, tensor in tensors.items() if name.startswith(f"{group}.")}
            self._states[group] = as_lstm_cache(None, len(own) // 2)
            for index, layer in enumerate(lstm_layers(self._states[group])):
                layer.update(own[f"{group}.{index}.keys"], own[f"{group}.{index}.values"], 0)


def _only(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the only batch of a list."""
    (batch,) = batches
    return batch


def _state_file(process_index: int) -> str:
    return f"carried_state_{process_index}.safetensors"
