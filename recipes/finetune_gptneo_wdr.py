"""Train a causal language model with heads for the words after the next one: word differences, or the simple N-gram.

A small GPT-Neo from scratch on the documentation that ships with Python, offline, in a minute on two CPU cores:
    accelerate launch recipes/finetune_gptneo_wdr.py recipes/settings/finetune_gptneo_wdr/smoke.yaml

As the paper fine-tunes GPT-Neo 1.3B on WikiText-2 (one 24 GB GPU, about a day; expected test perplexity 13.00, and
12.91 with the ensemble; 13.25 with `--target null`):
    accelerate launch recipes/finetune_gptneo_wdr.py recipes/settings/finetune_gptneo_wdr/paper.yaml
Any causal model, any text: --model_name_or_path EleutherAI/gpt-neo-125m --dataset my_text.txt.gz --output_dir mine
Side by side with a plain model and several seeds: recipes/tables/finetune_gptneo_wdr.py.
"""

import lab.start  # noqa: F401

from dataclasses import dataclass, field
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, EarlyStoppingCallback, set_seed

from hf_targets import (
    MultiTokenForCausalLM,
    MultiTokenTrainer,
    MultiTokenTrainingArguments,
    add_lora,
    word_level_tokenizer,
)
from lab.bag_of_words import BagOfWordsSettings, CausalBagOfWordsTrainer
from lab.card import finish, quoted, sample_text
from lab.results import measure, timed_training
from lab.runs import run_alone
from lab.text import BlockSettings


@dataclass
class Setup(BlockSettings):
    """Which model is trained on what."""

    model_name_or_path: str | None = field(default=None, metadata={"help": "Base model. None: a new, small one."})
    model_type: str = field(default="gpt_neo", metadata={"help": "Of a new model."})
    config: dict[str, Any] = field(default_factory=dict, metadata={"help": "Fields of a new model's configuration."})
    target: str | None = field(
        default="difference",
        metadata={"help": '"difference": word differences, "embedding": simple N-gram. None: a plain model.'},
    )
    head: str = field(default="mlp", metadata={"help": "Kind of the heads, such as conditional or mtp."})
    ngram_size: int = field(default=4, metadata={"help": "N: the heads predict N - 1 words after the next one."})
    loss_weight: float = field(default=0.1, metadata={"help": "Alpha, the weight of the heads' loss."})
    residual_heads: bool | None = field(
        default=None,
        metadata={
            "help": "Heads that begin as the model's next token, instead of the paper's. None: on a trained base."
        },
    )
    bag_of_words: dict[str, Any] | None = field(
        default=None, metadata={"help": "Fields of BagOfWordsSettings: a plain model learns bags of words too."}
    )
    words: bool = field(default=False, metadata={"help": "All words of the training text as tokens, not pieces."})
    patience: int | None = field(
        default=None, metadata={"help": "Evaluations without a lower validation perplexity before training stops."}
    )
    lora_rank: int | None = field(default=None, metadata={"help": "LoRA of this rank on the backbone. None: no LoRA."})
    lora_alpha: int = field(default=8, metadata={"help": "The scale of LoRA is this over the rank."})
    prompt: str | None = field(default="The ", metadata={"help": "What a sample begins with. None: no sample."})

    def __post_init__(self) -> None:
        if self.prompt == "":
            raise ValueError("a sample continues a prompt of a token or more; give one, or null for no sample")
        if self.bag_of_words is not None and self.target is not None:
            raise ValueError("bag_of_words is for a model without heads; set target to null")


SETTINGS = (Setup, MultiTokenTrainingArguments)


def main(setup: Setup, args: MultiTokenTrainingArguments) -> dict[str, float]:
    """Train one model, save the checkpoint of the lowest validation perplexity with its card, and measure it."""
    texts = setup.load()
    if setup.words:  # the vocabulary does not shrink with max_train_words
        tokenizer = word_level_tokenizer(setup.load(whole=True)["train"]["text"])
    else:
        tokenizer = setup.tokenizer(setup.model_name_or_path, texts)
    corpus = setup.blocks(texts, tokenizer)

    set_seed(args.seed)
    if setup.model_name_or_path is not None:
        model = AutoModelForCausalLM.from_pretrained(setup.model_name_or_path, dtype="float32")  # for training
    else:
        config = AutoConfig.for_model(setup.model_type, vocab_size=len(tokenizer), **setup.config)
        model = AutoModelForCausalLM.from_config(config)
    if setup.target is not None:
        sizes: dict[str, Any] = {name: getattr(setup, name) for name in ("head", "ngram_size", "loss_weight")}
        if setup.residual_heads is not None:
            sizes["residual_heads"] = setup.residual_heads
        model = MultiTokenForCausalLM.from_base(model, target=setup.target, **sizes)
    else:
        args = args.for_baseline()
    if setup.lora_rank is not None:
        model = add_lora(model, setup.lora_rank, alpha=setup.lora_alpha)

    data: dict[str, Any] = {"train_dataset": corpus["train"], "eval_dataset": corpus["validation"]}
    if setup.bag_of_words is not None:
        trainer = CausalBagOfWordsTrainer(model, args, bag=BagOfWordsSettings(**setup.bag_of_words), **data)
    else:
        trainer = MultiTokenTrainer(model, args, **data)
    if setup.patience is not None:
        trainer.add_callback(EarlyStoppingCallback(setup.patience))
    seconds = timed_training(trainer)
    results = {**measure(trainer, corpus["test"]), "seconds": seconds}
    trainer.save_state()
    if not trainer.is_world_process_zero():
        return results

    model = model if setup.lora_rank is None else model.merge_and_unload()  # pyright: ignore[reportCallIssue]
    if "ensemble_weight" in results:
        model.config.ensemble_weight = results["ensemble_weight"]  # it generates as it was measured
    model.save_pretrained(str(args.output_dir))
    sample = "" if setup.prompt is None else sample_text(model.cpu(), tokenizer, setup.prompt, args.seed)
    told = {"base_model": setup.model_name_or_path, "text": sample and f"A sample: {quoted(sample)}"}
    finish(trainer, tokenizer, results, f"A sample: {sample!r}", dataset=setup.dataset, **told)
    return results


if __name__ == "__main__":
    run_alone(main, *SETTINGS, description=__doc__)
