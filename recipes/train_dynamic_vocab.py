"""Train a causal language model that reads and generates phrases chosen when it is called.

From scratch, on the documentation that ships with Python, offline, in two minutes (enough to show phrases):
    python recipes/train_dynamic_vocab.py recipes/settings/train_dynamic_vocab/smoke.yaml

As the paper trains GPT-2 on WikiText-103 (two 24 GB GPUs, 400,000 steps there; table 1's MAUVE 25.69, Diversity 47.44):
    accelerate launch recipes/train_dynamic_vocab.py recipes/settings/train_dynamic_vocab/paper.yaml
TinyLlama with LoRA, its phrase encoder begun as GPT-2 (table 4's MAUVE 22.54, Diversity 53.99): `.../tinyllama.yaml`.
Any causal model, any text: --model_name_or_path gpt2 --dataset my_text.txt.gz --output_dir mine
Side by side with a plain model, other phrases and several seeds: recipes/tables/train_dynamic_vocab.py.
"""

import lab.start  # noqa: F401

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from accelerate import PartialState
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase, set_seed

from hf_targets import (
    MINERS,
    CorpusRetrieval,
    DynamicVocabForCausalLM,
    DynamicVocabTrainer,
    DynamicVocabTrainingArguments,
    PhraseCollator,
    add_lora,
)
from hf_targets.backbones.reformer.repair import repair_reformer
from hf_targets.phrases.batches.negatives import negatives_by_name
from hf_targets.phrases.mining.miner import MiningTask
from lab.card import finish
from lab.results import measure, timed_training
from lab.runs import run_alone
from lab.text import BlockSettings

USAGE = """from hf_targets import PhraseVocabulary

vocab_size = model.get_output_embeddings().weight.shape[0]
phrases = PhraseVocabulary.from_phrases(["of the language", "in the same way"], tokenizer, vocab_size=vocab_size)
inputs = tokenizer("The", return_tensors="pt")
print(phrases.decode(model.generate(**inputs, phrases=phrases, max_new_static_tokens=8)[0]))"""


@dataclass
class Setup(BlockSettings):
    """Which model is trained on what, with which phrases and against which negatives."""

    model_name_or_path: str | None = field(default=None, metadata={"help": "Base model. None: a new, small one."})
    model_type: str = field(default="gpt2", metadata={"help": "Of a new model."})
    config: dict[str, Any] = field(default_factory=dict, metadata={"help": "Fields of a new model's configuration."})
    phrase_encoder: str | None = field(
        default=None, metadata={"help": "What the phrase encoder begins as. None: a copy of the base model."}
    )
    losses: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "Fields of DynamicVocabConfig, such as kl_positions and projection."}
    )
    phrases: str | None = field(
        default="words",
        metadata={"help": 'Runs of "words" or "tokens", "fmm" (frequent ones), "chunks", "parsing". None: plain.'},
    )
    parser_models: str | None = field(default=None, metadata={"help": "Folder of a stanza pipeline, for parsing."})
    fmm_min_count: int = field(default=10, metadata={"help": "How often a phrase must stand in the text, for fmm."})
    min_gap: int = field(default=5, metadata={"help": "Plain tokens between two phrases, at least."})
    phrase_rate: float = field(default=0.2, metadata={"help": "Probability of a phrase where one may start."})
    max_phrase_tokens: int = field(default=8, metadata={"help": "Tokens of a phrase, at most."})
    negatives: list[str] = field(
        default_factory=lambda: ["in_batch", "prefix", "self_retrieval"],
        metadata={"help": "Of in_batch, pre_batch, prefix, self_retrieval, corpus_retrieval (with fmm), generation."},
    )
    negatives_model: str | None = field(default=None, metadata={"help": "Any causal model, for generation."})
    num_successors: int = field(default=2, metadata={"help": "Tokens behind a phrase that make negatives, at most."})
    lora_rank: int | None = field(default=None, metadata={"help": "LoRA of this rank on the backbone. None: no LoRA."})
    lora_alpha: int = field(default=32, metadata={"help": "The scale of LoRA is this over the rank."})

    def __post_init__(self) -> None:
        if "corpus_retrieval" in self.negatives and self.phrases != "fmm":
            raise ValueError(f"corpus_retrieval needs --phrases fmm, got {self.phrases}; leave it out of the negatives")
        if "generation" in self.negatives and self.negatives_model is None:
            raise ValueError("generation needs --negatives_model, a language model; or leave it out of the negatives")


SETTINGS = (Setup, DynamicVocabTrainingArguments)


def make_collator(setup: Setup, tokenizer: PreTrainedTokenizerBase, texts: Any, vocab_size: int) -> PhraseCollator:
    """Return the collator that chooses phrases and negatives; fmm and corpus_retrieval look through the texts."""
    rows = cache(lambda: tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"])
    sizes = {"max_tokens": setup.max_phrase_tokens, "min_count": setup.fmm_min_count}
    task = MiningTask(rows, excluded_ids=tokenizer.all_special_ids, parser=setup.parser_models, **sizes)
    miner = MINERS[str(setup.phrases)].for_task(task)
    given: dict[str, Any] = {"num_successors": setup.num_successors}
    if "corpus_retrieval" in setup.negatives:
        given["corpus_retrieval"] = CorpusRetrieval.from_corpus(rows(), miner.phrases, **given)
    if setup.negatives_model is not None:
        language_model: Any = repair_reformer(AutoModelForCausalLM.from_pretrained(setup.negatives_model)).eval()
        given["language_model"] = language_model.to(PartialState().device)
        given["tokenizers"] = tokenizer, AutoTokenizer.from_pretrained(setup.negatives_model)
    return PhraseCollator(
        tokenizer,
        miner,
        vocab_size=vocab_size,
        negatives=negatives_by_name(setup.negatives, **given),
        min_gap=setup.min_gap,
        phrase_rate=setup.phrase_rate,
        max_tokens=setup.max_phrase_tokens,
    )


def main(setup: Setup, args: DynamicVocabTrainingArguments) -> dict[str, float]:
    """Train one model, save it with its card, and measure it."""
    texts = setup.load()
    tokenizer = setup.tokenizer(setup.model_name_or_path, texts)
    corpus = setup.blocks(texts, tokenizer)

    set_seed(args.seed)
    model: Any
    if setup.model_name_or_path is not None:
        model = AutoModelForCausalLM.from_pretrained(setup.model_name_or_path, dtype="float32")  # for training
    else:
        config = AutoConfig.for_model(setup.model_type, vocab_size=len(tokenizer), **setup.config)
        model = AutoModelForCausalLM.from_config(config)
        setup = replace(setup, losses={"phrase_start": "encoder", **setup.losses})  # its tokens mean nothing yet
    collator = None
    if setup.phrases is None:
        args = args.for_baseline()
    else:
        vocab_size = model.get_output_embeddings().weight.shape[0]
        collator = make_collator(setup, tokenizer, texts["train"]["text"], vocab_size)
        model = DynamicVocabForCausalLM.from_base(model, setup.phrase_encoder, tokenizer=tokenizer, **setup.losses)
    if setup.lora_rank is not None:
        model = add_lora(model, setup.lora_rank, alpha=setup.lora_alpha, dropout=0.1)

    data = {"train_dataset": corpus["train"], "eval_dataset": corpus["validation"]}
    trainer = DynamicVocabTrainer(model, args, data_collator=collator, **data)
    seconds = timed_training(trainer)
    results = {**measure(trainer, corpus["test"]), "seconds": seconds}
    trainer.save_state()
    if trainer.is_world_process_zero():
        model = model if setup.lora_rank is None else model.merge_and_unload()
        model.save_pretrained(str(args.output_dir))
        card = {"dataset": setup.dataset, "base_model": setup.model_name_or_path, "usage": setup.phrases and USAGE}
        finish(trainer, tokenizer, results, f"Test perplexity {results['perplexity']:.2f}", **card)
    return results


if __name__ == "__main__":
    run_alone(main, *SETTINGS, description=__doc__)
