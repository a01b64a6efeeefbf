"""Train a masked model with heads that predict word differences, as appendix A.3 of the earlier paper does.

On WikiText-103 with CrammedBERT, as published, on one GPU:
    HF_TARGETS_DATA=data accelerate launch recipes/train_masked_lm.py recipes/settings/train_masked_lm/paper.yaml

At a size for a CPU: `.../crammed_cpu.yaml`, and `.../cpu.yaml` with a BERT; in a minute, on documentation:
`.../smoke.yaml`. A plain model: --heads null. Side by side: recipes/tables/train_masked_lm.py. `backbone` in the folder
of the model is what recipes/evaluate_glue.py fine-tunes. Measured: recipes/masked_models.md.
"""

import lab.start  # noqa: F401

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoConfig, AutoModelForMaskedLM, EarlyStoppingCallback, set_seed

from hf_targets import (
    MultiTokenForMaskedLM,
    MultiTokenMaskedTrainer,
    MultiTokenMaskedTrainingArguments,
    enclosed_blocks,
    train_masking_tokenizer,
)
from lab.card import finish
from lab.results import measure, timed_training
from lab.runs import run_alone
from lab.text import BlockSettings

RAMP = 0.6
"""Share of the updates after which batches have all their rows."""


class CrammingTrainer(MultiTokenMaskedTrainer):
    """A trainer whose rate rises from a quarter until three quarters of the updates, and then falls to 0.

    A batch of an early update has fewer rows than its settings say, in proportion to the updates made; those that it
    leaves out are not read in this epoch.

    Source: JonasGeiping/cramming, train/bert-o4.yaml: scheduler budget-triangle2, batch_size_ramp 0.6.
    Departs: rate and batches follow the updates; the published program's follow the time of a training that has a day,
        so that it makes more of the small updates.
    """

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LambdaLR:
        """Return the schedule of the rate; `lr_scheduler_type` has no effect."""

        def factor(step: int) -> float:
            return min(0.25 + step / num_training_steps, 4 - 4 * step / num_training_steps)

        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)  # pyright: ignore[reportArgumentType]
        return self.lr_scheduler  # pyright: ignore[reportReturnType]

    def get_batch_samples(self, epoch_iterator: Iterator, *args: Any, **kwargs: Any) -> Any:
        """Collect the batches of an update, with the rows that it has by now."""
        share = min((self.state.global_step + 1) / (RAMP * self.state.max_steps), 1.0)
        cut = ({key: part[: math.ceil(share * len(part))] for key, part in batch.items()} for batch in epoch_iterator)
        return super().get_batch_samples(cut, *args, **kwargs)


@dataclass
class Setup(BlockSettings):
    """Which model is trained on what."""

    model_type: str = field(default="bert", metadata={"help": "bert, crammed_bert, or another of Transformers."})
    config: dict[str, Any] = field(default_factory=dict, metadata={"help": "Fields of its configuration."})
    heads: dict[str, Any] | None = field(
        default_factory=lambda: {"ngram_size": 2},
        metadata={"help": "Fields of MultiTokenMaskedConfig, such as masked_only. None: a plain model."},
    )
    cramming: bool = field(
        default=False, metadata={"help": "The learning rates and growing batches of CrammedBERT's published program."}
    )
    patience: int | None = field(
        default=None, metadata={"help": "Evaluations without a lower validation perplexity before training stops."}
    )


SETTINGS = (Setup, MultiTokenMaskedTrainingArguments)


def main(setup: Setup, args: MultiTokenMaskedTrainingArguments) -> dict[str, float]:
    """Train one model, save it with its card and its backbone, and measure it."""
    texts = setup.load()
    tokenizer = train_masking_tokenizer(texts["train"]["text"], setup.vocab_size, setup.block_size)
    if setup.model_type == "crammed_bert":
        tokenizer.model_input_names = ["input_ids", "attention_mask"]  # it has no segments
    corpus = {str(split): enclosed_blocks(text, tokenizer, setup.block_size) for split, text in texts.items()}
    corpus = setup.cut(corpus)

    set_seed(args.seed)
    ids = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    model: Any = AutoModelForMaskedLM.from_config(AutoConfig.for_model(setup.model_type, **ids, **setup.config))
    if setup.heads is not None:
        model = MultiTokenForMaskedLM.from_base(model, **setup.heads)
    else:
        args = args.for_baseline()
    data = {"train_dataset": corpus["train"], "eval_dataset": corpus["validation"], "processing_class": tokenizer}
    trainer = (CrammingTrainer if setup.cramming else MultiTokenMaskedTrainer)(model, args, **data)
    if setup.patience is not None:
        trainer.add_callback(EarlyStoppingCallback(setup.patience))
    seconds = timed_training(trainer)
    results = {**measure(trainer, corpus["test"]), "seconds": seconds}
    trainer.save_state()
    if not trainer.is_world_process_zero():
        return results

    folder = Path(str(args.output_dir))
    for whole, place in ((model, folder), (getattr(model, "backbone", model), folder / "backbone")):
        whole.save_pretrained(place)
        tokenizer.save_pretrained(place)
    told = f"Test perplexity: {results['perplexity']:.2f}"
    finish(trainer, tokenizer, results, told, dataset=setup.dataset, auto_class="AutoModelForMaskedLM")
    return results


if __name__ == "__main__":
    run_alone(main, *SETTINGS, description=__doc__)
