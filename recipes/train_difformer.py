"""Train a Gaussian diffusion model that translates, paraphrases or simplifies: Difformer or DINOISER, curved or not.

In a minute on two CPU cores, without data (a quick check that it runs):
    python recipes/train_difformer.py recipes/settings/train_difformer/smoke.yaml
On the captions of Multi30k, German to English, at a size for two CPU cores:
    HF_TARGETS_DATA=data accelerate launch recipes/train_difformer.py recipes/settings/train_difformer/multi30k.yaml
Rows of the papers' tables side by side: recipes/tables/train_difformer.py. Notes: recipes/gaussian_diffusion.md.
"""

import lab.start  # noqa: F401

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, set_seed

from hf_targets import (
    DifformerConfig,
    DifformerForConditionalGeneration,
    GaussianDiffusionTrainingArguments,
    translation_scores,
)
from hf_targets.evaluation.translation import generated_texts
from hf_targets.extras import require
from hf_targets.gaussian_diffusion.generation import DEFAULTS
from hf_targets.training.checkpoints import KeepBest, best_checkpoints, chosen_by, load_mean
from lab.card import finish
from lab.curve_steps import curves_of_predictions, plot_curve_steps
from lab.results import BleuTrainer, measure, timed_training
from lab.runs import run_alone
from lab.text import PairSettings


@dataclass
class Setup(PairSettings):
    """Which model is trained on what."""

    preset: str = field(default="difformer", metadata={"help": "difformer or dinoiser."})
    config: dict[str, Any] = field(default_factory=dict, metadata={"help": "Other fields of the DifformerConfig."})
    curve: dict[str, Any] | None = field(
        default=None, metadata={"help": "Fields of the CurveConfig, {} for its defaults. None: no curve."}
    )
    multitoken: dict[str, Any] | None = field(
        default=None, metadata={"help": "Heads for the words after the next one, {} for the defaults. None: no heads."}
    )
    max_positions: int = field(default=256, metadata={"help": "Longest source, and longest text, in tokens."})
    generation: dict[str, Any] = field(
        default_factory=lambda: {"num_lengths": 5, "num_noises": 2},
        metadata={"help": "Settings of generate that the model keeps; minimum Bayes risk chooses among the texts."},
    )
    ensemble_weight: float = field(default=0.1, metadata={"help": "Lambda of a model with heads, scored beside 0."})
    translation_tokens: int = field(default=2048, metadata={"help": "Tokens of sources at once, times the candidates."})
    tokenized: bool = field(
        default=False,
        metadata={
            "help": "Whether the text is cut into words already: beside BLEU of plain text there is bleu_tokenized."
        },
    )
    average_checkpoints: int = field(
        default=1, metadata={"help": "Score the mean of so many, the best; above 1 they are kept."}
    )
    patience: int | None = field(
        default=None, metadata={"help": "Evaluations without a better metric_for_best_model before training stops."}
    )

    def __post_init__(self) -> None:
        if unknown := self.generation.keys() - DEFAULTS.keys():
            raise ValueError(f"generation may have {', '.join(DEFAULTS)}, got {', '.join(sorted(unknown))}")
        self.generation = {"num_lengths": 1, "num_noises": 1, **self.generation}
        self.max_source_length = min(self.max_source_length or self.max_positions, self.max_positions)
        self.max_target_length = min(self.max_target_length or self.max_positions, self.max_positions)


SETTINGS = (Setup, GaussianDiffusionTrainingArguments)


def main(setup: Setup, args: GaussianDiffusionTrainingArguments) -> dict[str, float]:
    """Train one model, save it with its card, and score the texts that it writes for the test split."""
    for package in ("sacrebleu", *(["sacremoses"] if setup.tokenized else [])):
        require(package, extra="eval")
    texts: Any = setup.load()
    tokenizer = setup.tokenizer(None, texts)
    corpus = setup.encoded(texts, tokenizer)

    set_seed(args.seed)
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id", "bos_token_id")}
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": setup.max_positions, **setup.config}
    targets = {"curve": setup.curve, "multitoken": setup.multitoken}
    config = DifformerConfig(preset=setup.preset, **ids, **sizes, **targets)  # pyright: ignore[reportArgumentType]
    model: Any = DifformerForConditionalGeneration(config)
    for name, value in setup.generation.items():
        setattr(model.generation_config, name, value)
    model.generate(torch.tensor([[tokenizer.eos_token_id]]), generator=torch.Generator())  # or a setting is refused

    def scores_of(split: str, candidates: int, **chosen: Any) -> dict[str, float]:
        """Return the scores of what the model writes for a split."""
        write = partial(model.generate, tokenizer=tokenizer, generator=torch.Generator().manual_seed(args.seed))
        room = setup.translation_tokens // candidates
        found = generated_texts(
            model, lambda batch: write(**batch, **chosen), corpus[split], tokenizer, batch_tokens=room
        )
        told = {"tokenized": setup.tokenized, "target_lang": setup.target_lang}
        return translation_scores(found, texts[split], **told).columns()

    data = {"train_dataset": corpus["train"], "eval_dataset": corpus["validation"], "processing_class": tokenizer}
    one = partial(scores_of, "validation", 1, num_lengths=1, num_noises=1)
    trainer = BleuTrainer(model, args, score=one, **data)
    if setup.patience is not None:
        trainer.add_callback(EarlyStoppingCallback(setup.patience))
    if setup.average_checkpoints > 1:
        args.save_total_limit = None
        trainer.add_callback(KeepBest(setup.average_checkpoints))
    seconds = timed_training(trainer)
    if setup.average_checkpoints > 1:
        load_mean(model, best_checkpoints(Path(str(args.output_dir)), setup.average_checkpoints, **chosen_by(args)))
    results = {**measure(trainer), "seconds": seconds}
    trainer.save_state()
    trainer.save_model(_internal_call=True)  # which does not upload it yet
    if not trainer.is_world_process_zero():
        return results

    count = model.generation_config.num_lengths * model.generation_config.num_noises
    weights = {"": 0.0, **({"_ensemble": setup.ensemble_weight} if model.config.multitoken else {})}
    for split, begin in (("validation", "validation_"), ("test", "")):
        for ending, weight in weights.items():
            scores = scores_of(split, count, ensemble_weight=weight)
            results |= {f"{begin}{name}{ending}": value for name, value in scores.items()}
    if model.config.curve is not None:  # figures 1 and 9 of the paper
        source = tokenizer(texts["test"]["source"][:1], return_tensors="pt", return_token_type_ids=False)
        options = {"num_lengths": 1, "num_noises": 1, "output_predictions": True}
        steps = curves_of_predictions(model, model.generate(**source.to(model.device), **options))
        plot_curve_steps(steps, Path(str(args.output_dir)) / "curve_steps.png", tokenizer)
    finish(trainer, tokenizer, results, str(results), dataset=setup.dataset, auto_class="AutoModelForSeq2SeqLM")
    return results


if __name__ == "__main__":
    run_alone(main, *SETTINGS, description=__doc__)
