"""Train an AWD-LSTM, with cosine regularisation or without; finetune it; measure it with a continuous cache.

In a minute, on the documentation that ships with Python:

    accelerate launch recipes/train_awd_lstm.py recipes/settings/train_awd_lstm/smoke.yaml

The published model for WikiText-2 (one GPU; its test perplexity is 66.0, 65.8 finetuned and 52.0 with the cache), and
its finetuning:

    HF_TARGETS_DATA=data accelerate launch recipes/train_awd_lstm.py recipes/settings/train_awd_lstm/wikitext2.yaml
    HF_TARGETS_DATA=data accelerate launch recipes/train_awd_lstm.py recipes/settings/train_awd_lstm/wikitext2.yaml \
        --model_name_or_path runs/train_awd_lstm/wikitext2 --average_from_start true --output_dir runs/finetuned

With cosine regularisation: `--cosine_weight 1`. The paper's table 1, with seeds: recipes/tables/train_awd_lstm.py.
"""

import lab.start  # noqa: F401

from dataclasses import dataclass, field
from itertools import product
from typing import Any

from transformers import set_seed

from hf_targets import (
    AwdLstmConfig,
    AwdLstmForCausalLM,
    AwdLstmTrainer,
    AwdLstmTrainingArguments,
    NeuralCache,
    cached_perplexities,
    embedding_geometry,
    search_cache,
    word_level_tokenizer,
)
from lab.card import finish
from lab.results import measure, timed_training
from lab.runs import run_alone
from lab.text import BlockSettings

USAGE = """inputs = tokenizer("The", return_tensors="pt")
state = model(**inputs, use_cache=True).past_key_values  # of constant size, however long the text is
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0]))"""


@dataclass
class Setup(BlockSettings):
    """Which model is trained on what."""

    words: bool = field(default=False, metadata={"help": "All words of the training text as tokens, not pieces."})
    config: dict[str, Any] = field(default_factory=dict, metadata={"help": "Fields of AwdLstmConfig."})
    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "A trained AWD-LSTM to finetune, with --average_from_start true. None: a new one."},
    )
    cache_window: int | None = field(
        default=None, metadata={"help": "W: hidden states that a continuous cache remembers. None: no cache."}
    )
    cache_thetas: list[float] = field(
        default_factory=lambda: [0.3, 0.662, 1.0], metadata={"help": "Thetas to choose from on the validation text."}
    )
    cache_weights: list[float] = field(
        default_factory=lambda: [0.0, 0.05, 0.1, 0.1279, 0.15, 0.2, 0.25, 0.3],
        metadata={"help": "Lambdas to choose from, each in [0, 1); 0 is no cache."},
    )

    def __post_init__(self) -> None:
        if self.cache_window is not None:
            for theta, weight in product(self.cache_thetas, self.cache_weights):
                NeuralCache(self.cache_window, theta, weight)  # or one of them is refused


SETTINGS = (Setup, AwdLstmTrainingArguments)


def main(setup: Setup, args: AwdLstmTrainingArguments) -> dict[str, float]:
    """Train or finetune one model, save it with its card, and measure it."""
    texts = setup.load()
    if setup.words and setup.model_name_or_path is None:  # the vocabulary does not shrink with max_train_words
        tokenizer = word_level_tokenizer(setup.load(whole=True)["train"]["text"])
    else:
        tokenizer = setup.tokenizer(setup.model_name_or_path, texts)
    corpus = setup.blocks(texts, tokenizer)

    set_seed(args.seed)
    if setup.model_name_or_path is not None:
        model = AwdLstmForCausalLM.from_pretrained(setup.model_name_or_path)
    else:
        ids = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
        model = AwdLstmForCausalLM(AwdLstmConfig(**ids, **setup.config))  # pyright: ignore[reportArgumentType]
    trainer = AwdLstmTrainer(model, args, train_dataset=corpus["train"], eval_dataset=corpus["validation"])
    seconds = timed_training(trainer)
    results = {**measure(trainer, corpus["test"]), "seconds": seconds}
    trainer.save_state()
    trainer.save_model(_internal_call=True)  # which does not upload it yet
    if trainer.is_world_process_zero():
        geometry = embedding_geometry(model)
        results |= {"mean cosine, %": 100 * geometry.mean_cosine, "effective rank": geometry.effective_rank}
        results |= {} if setup.cache_window is None else measure_cache(setup, model, corpus)
        told = f"Test perplexity a word {results['word_perplexity']:.2f}"
        finish(trainer, tokenizer, results, told, dataset=setup.dataset, usage=USAGE)
    trainer.accelerator.wait_for_everyone()  # a finetuning may read the model next
    return results


def measure_cache(setup: Setup, model: AwdLstmForCausalLM, corpus: dict[str, Any]) -> dict[str, float]:
    """Return the test perplexities a word without and with the best cache on the validation text, and that cache."""
    assert setup.cache_window is not None
    grid = setup.cache_window, setup.cache_thetas, setup.cache_weights
    cache = search_cache(model, corpus["validation"], *grid, carries_state=True)
    found = cached_perplexities(model, corpus["test"], {"word_perplexity_cache": cache}, carries_state=True)
    found["word_perplexity"] = found.pop("without cache")
    figures = {name: one.per_word for name, one in found.items() if one.per_word is not None}
    return {**figures, "cache_theta": cache.theta, "cache_weight": cache.weight}


if __name__ == "__main__":
    run_alone(main, *SETTINGS, description=__doc__)
