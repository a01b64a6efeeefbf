"""Train a Transformer with an LSTM that predicts the next N words at once: as words, or as a sentence curve.

Section 5.4 of the sentence curve paper on WikiText-2 (one GPU):
    HF_TARGETS_DATA=data accelerate launch recipes/train_semi_autoregressive.py \
        recipes/settings/train_semi_autoregressive/paper.yaml

At a size for a CPU: `.../cpu.yaml`; in a minute, on documentation: `.../smoke.yaml`. Words and curves side by side:
recipes/tables/train_semi_autoregressive.py. Measured: recipes/semi_autoregressive.md.
"""

import lab.start  # noqa: F401

from dataclasses import dataclass, field
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, EarlyStoppingCallback, set_seed

from hf_targets import (
    SemiAutoregressiveForCausalLM,
    SemiAutoregressiveTrainer,
    TargetTrainingArguments,
    word_level_tokenizer,
)
from lab.card import finish
from lab.results import measure, timed_training
from lab.runs import run_alone
from lab.text import BlockSettings

USAGE = """inputs = tokenizer("The", return_tensors="pt")
words = model.generate(**inputs, max_new_tokens=8, tokens_per_step=2)  # 1 (slower, better) to config.ngram_size
print(tokenizer.decode(words[0]))"""


@dataclass
class Setup(BlockSettings):
    """Which model is trained on what."""

    words: bool = field(default=False, metadata={"help": "All words of the training text as tokens, not pieces."})
    model_name_or_path: str | None = field(default=None, metadata={"help": "Base model. None: a new, small one."})
    # Departs: the paper's Transformer is fairseq's transformer_iwslt_de_en
    model_type: str = field(default="gpt2", metadata={"help": "Of a new Transformer."})
    config: dict[str, Any] = field(default_factory=dict, metadata={"help": "Fields of its configuration."})
    ngram_size: int = field(default=3, metadata={"help": "N, words of a block."})
    curve: dict[str, Any] | None = field(
        default=None, metadata={"help": "num_control_points, degree and num_curves. None: the words themselves."}
    )
    patience: int | None = field(
        default=None, metadata={"help": "Evaluations without a lower validation perplexity before training stops."}
    )

    def __post_init__(self) -> None:
        if self.words and self.model_name_or_path is not None:
            raise ValueError(f"words are the tokens of a new model; set words to false for {self.model_name_or_path}")


SETTINGS = (Setup, TargetTrainingArguments)


def main(setup: Setup, args: TargetTrainingArguments) -> dict[str, float]:
    """Train one model, save it with its card, and measure it.

    `perplexity_n` is that of the n-th word from here, `perplexity` the mean over words 1 to N. What other language
    models report is `perplexity_1`; `word_perplexity` is the same per word of the text.
    """
    texts = setup.load()
    if setup.words:  # the vocabulary does not shrink with max_train_words
        tokenizer = word_level_tokenizer(setup.load(whole=True)["train"]["text"])
    else:
        tokenizer = setup.tokenizer(setup.model_name_or_path, texts)
    corpus = setup.blocks(texts, tokenizer)

    set_seed(args.seed)
    if setup.model_name_or_path is not None:
        base = AutoModelForCausalLM.from_pretrained(setup.model_name_or_path, dtype="float32")  # for training
    else:
        config = AutoConfig.for_model(setup.model_type, vocab_size=len(tokenizer), **setup.config)
        base = AutoModelForCausalLM.from_config(config)
    curve = {} if setup.curve is None else {"curve": setup.curve}
    model = SemiAutoregressiveForCausalLM.from_base(base, ngram_size=setup.ngram_size, **curve)
    data = {"train_dataset": corpus["train"], "eval_dataset": corpus["validation"]}
    trainer = SemiAutoregressiveTrainer(model, args, **data)
    if setup.patience is not None:
        trainer.add_callback(EarlyStoppingCallback(setup.patience))
    seconds = timed_training(trainer)
    results = {**measure(trainer, corpus["test"]), "seconds": seconds}
    trainer.save_state()
    if not trainer.is_world_process_zero():
        return results

    model.save_pretrained(str(args.output_dir))
    told = f"Test perplexity of the next word: {results['perplexity_1']:.2f}"
    card = {"dataset": setup.dataset, "usage": USAGE, "base_model": setup.model_name_or_path}
    finish(trainer, tokenizer, results, told, **card)
    return results


if __name__ == "__main__":
    run_alone(main, *SETTINGS, description=__doc__)
