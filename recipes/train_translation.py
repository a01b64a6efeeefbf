"""Train a translation model with heads for the words after the next one, and score its translations.

German to English captions of Multi30k, at a size for two CPU cores (IWSLT14, WMT14 and WMT18 are beside it):
    HF_TARGETS_DATA=data accelerate launch recipes/train_translation.py recipes/settings/train_translation/multi30k.yaml

In a minute, without data: `.../smoke.yaml`. Any model of the Hub: --model_name_or_path. A plain model: --target null,
or with bags of words as targets too: --bag_of_words '{}'. All of them side by side, as in table 4:
recipes/tables/train_translation.py. Measured: recipes/multitoken.md.
"""

import lab.start

from dataclasses import dataclass, field
from typing import Any

from transformers import AutoConfig, AutoModelForSeq2SeqLM, EarlyStoppingCallback, set_seed

import lab.lstm_translation  # noqa: F401, which registers it
from hf_targets import (
    MultiTokenForSeq2SeqLM,
    MultiTokenSeq2SeqTrainer,
    MultiTokenSeq2SeqTrainingArguments,
    translate,
    translation_scores,
)
from hf_targets.extras import require
from hf_targets.training.checkpoints import KeepBest, best_checkpoints, chosen_by, last_checkpoints, load_mean
from lab.bag_of_words import BagOfWordsSettings, BagOfWordsTrainer
from lab.card import finish
from lab.results import measure, timed_training
from lab.runs import run_alone
from lab.text import PairSettings


@dataclass
class Setup(PairSettings):
    """Which model is trained on what."""

    model_name_or_path: str | None = field(default=None, metadata={"help": "Base model. None: a new, small one."})
    config: dict[str, Any] = field(
        default_factory=dict,
        metadata={"help": "Fields of a new MarianConfig, or with another model_type (lstm_translation) of its own."},
    )
    attention: str = field(default="sdpa", metadata={"help": "sdpa, or eager: faster on a CPU for short texts."})
    target: str | None = field(
        default="difference",
        metadata={"help": '"difference": word differences, "embedding": simple N-gram. None: a plain model.'},
    )
    ngram_size: int = field(default=3, metadata={"help": "N: the heads predict N - 1 words after the next one."})
    loss_weight: float = field(default=1.0, metadata={"help": "Alpha, the weight of the heads' loss."})
    bag_of_words: dict[str, Any] | None = field(
        default=None, metadata={"help": "Fields of BagOfWordsSettings: a plain model learns bags of words too."}
    )
    num_beams: int = field(default=5, metadata={"help": "Beams of the translations that are scored."})
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
        default=None, metadata={"help": "Evaluations without a lower validation perplexity before training stops."}
    )
    average_last: bool = field(
        default=False, metadata={"help": "Average the last ones in place of the best; save_total_limit must keep them."}
    )
    length_penalty: float = field(
        default=1.0, metadata={"help": "Of the beams: a sum of log-probabilities is divided by length ** this."}
    )

    def __post_init__(self) -> None:
        if self.bag_of_words is not None and self.target is not None:
            raise ValueError("bag_of_words is for a model without heads; set target to null")


SETTINGS = (Setup, MultiTokenSeq2SeqTrainingArguments)


def main(setup: Setup, args: MultiTokenSeq2SeqTrainingArguments) -> dict[str, float]:
    """Train one model, save it with its card, and score its translations of the test text."""
    for package in ("sacrebleu", *(["sacremoses"] if setup.tokenized else [])):
        require(package, extra="eval")  # which is needed at the end
    texts = setup.load()
    tokenizer = setup.tokenizer(setup.model_name_or_path, texts)
    corpus = setup.encoded(texts, tokenizer)

    set_seed(args.seed)
    model: Any
    if setup.model_name_or_path is not None:
        model = AutoModelForSeq2SeqLM.from_pretrained(
            setup.model_name_or_path, dtype="float32", attn_implementation=setup.attention
        )
    else:
        ids: dict[str, Any] = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
        ids |= {"decoder_start_token_id": tokenizer.pad_token_id, "forced_eos_token_id": None, "bos_token_id": None}
        common = {"vocab_size": len(tokenizer), "scale_embedding": True, "activation_function": "relu"}
        config = AutoConfig.for_model(**{"model_type": "marian", **ids, **common, **setup.config})
        model = AutoModelForSeq2SeqLM.from_config(config, attn_implementation=setup.attention)
    if setup.target is not None:
        sizes = {"ngram_size": setup.ngram_size, "loss_weight": setup.loss_weight}
        model = MultiTokenForSeq2SeqLM.from_base(model, target=setup.target, **sizes)
    else:
        args = args.for_baseline()

    data = {"train_dataset": corpus["train"], "eval_dataset": corpus["validation"], "processing_class": tokenizer}
    if setup.bag_of_words is not None:
        trainer = BagOfWordsTrainer(model, args, bag=BagOfWordsSettings(**setup.bag_of_words), **data)
    else:
        trainer = MultiTokenSeq2SeqTrainer(model, args, **data)
    if setup.patience is not None:
        trainer.add_callback(EarlyStoppingCallback(setup.patience))
    if setup.average_checkpoints > 1 and not setup.average_last:
        args.save_total_limit = None
        trainer.add_callback(KeepBest(setup.average_checkpoints))
    seconds = timed_training(trainer)
    folder: Any = args.output_dir
    if setup.average_checkpoints > 1:
        count = setup.average_checkpoints
        best = not setup.average_last
        load_mean(
            model, best_checkpoints(folder, count, **chosen_by(args)) if best else last_checkpoints(folder, count)
        )
    results = {**measure(trainer, corpus["test"]), "seconds": seconds}
    trainer.save_state()
    if not trainer.is_world_process_zero():
        return results
    model.save_pretrained(folder)

    weight = results.get("ensemble_weight")
    for suffix, ensemble in {"": None if weight is None else 0.0, **({"_ensemble": weight} if weight else {})}.items():
        options: Any = {"length_penalty": setup.length_penalty} if setup.num_beams > 1 else {}
        options |= {} if ensemble is None else {"ensemble_weight": ensemble}
        found = translate(model, corpus["test"], tokenizer, num_beams=setup.num_beams, **options)
        told = {"tokenized": setup.tokenized, "target_lang": setup.target_lang}
        scores = translation_scores(found, texts["test"], **told).columns()
        results |= {f"{name}{suffix}": value for name, value in scores.items()}
    card = {"dataset": setup.dataset, "base_model": setup.model_name_or_path, "auto_class": "AutoModelForSeq2SeqLM"}
    finish(trainer, tokenizer, results, f"Scores: {scores}", **card)
    return results


if __name__ == "__main__":
    run_alone(main, *SETTINGS, description=__doc__)
