"""Train a causal language model to read and generate phrases that are chosen when it is called.

From scratch, on the documentation that ships with Python, offline, in a minute (that it runs, not what it can reach):
    python recipes/train_dynamic_vocab.py recipes/settings/train_dynamic_vocab/smoke.yaml

As the paper trains GPT-2 on WikiText-103 (two 24 GB GPUs, 400,000 steps there; table 1's MAUVE 25.69, Diversity 47.44):
    accelerate launch recipes/train_dynamic_vocab.py recipes/settings/train_dynamic_vocab/paper.yaml
TinyLlama with LoRA, its phrase encoder begun as GPT-2 (table 4's MAUVE 22.54, Diversity 53.99): `.../tinyllama.yaml`.
On WikiText-2 from scratch at a size for two CPU cores: `.../cpu.yaml`; measured in recipes/README.md.
Any causal model, any text: --model_name_or_path gpt2 --dataset my_text.txt.gz --output_dir mine
The same backbone trained equally long without phrases, to compare with: --phrases none
"""

from dataclasses import asdict, dataclass, field
from typing import Any, cast

from datasets import Dataset, DatasetDict
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, PreTrainedModel, set_seed

from hf_targets import (
    DynamicVocabForCausalLM,
    DynamicVocabTrainer,
    DynamicVocabTrainingArguments,
    PhraseCollator,
    load_corpus,
    pack_blocks,
    train_bpe_tokenizer,
)
from hf_targets.training.lora import add_lora
from hf_targets.training.outputs import ROW_OUTPUT, write_json
from hf_targets.training.phrase_settings import PhraseSettings, make_collator
from hf_targets.training.resuming import train
from hf_targets.training.runs import Run
from hf_targets.training.settings import parse


@dataclass
class Setup(PhraseSettings):
    """What is trained on what."""

    model_name_or_path: str | None = field(default=None, metadata={"help": "Base model; None: a new small GPT-2."})
    phrase_encoder: str | None = field(
        default=None, metadata={"help": "What the phrase encoder begins as; None: a copy of the base model."}
    )
    tokenizer: str | None = field(default=None, metadata={"help": "Of a new model; None: one trained on the text."})
    dataset: str = field(default="documentation", metadata={"help": "Corpus, file, folder, or name on the Hub."})
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a data set on the Hub."})
    max_train_words: int | None = field(default=None, metadata={"help": "Train on so many words only."})
    max_validation_blocks: int | None = field(default=None, metadata={"help": "Validate on so many blocks only."})
    block_size: int = field(default=512, metadata={"help": "Tokens in a row of a batch."})
    lora_rank: int | None = field(
        default=None, metadata={"help": "LoRA of this rank on the backbone; None: all of it."}
    )
    lora_alpha: int = field(default=32, metadata={"help": "LoRA's alpha."})
    lora_dropout: float = field(default=0.1, metadata={"help": "LoRA's dropout."})
    vocab_size: int = field(default=4096, metadata={"help": "Of a tokenizer trained for a new model."})
    hidden_size: int = field(default=128, metadata={"help": "Of a new model."})
    num_layers: int = field(default=4, metadata={"help": "Of a new model."})
    num_heads: int = field(default=4, metadata={"help": "Attention heads of a new model."})
    dropout: float = field(default=0.1, metadata={"help": "Of a new model."})
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace an older output."})


def make_base(setup: Setup, vocab_size: int) -> PreTrainedModel:
    """Return the model that training starts from."""
    if setup.model_name_or_path is not None:
        return AutoModelForCausalLM.from_pretrained(setup.model_name_or_path)
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), setup.dropout)
    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=setup.block_size,
        n_embd=setup.hidden_size,
        n_layer=setup.num_layers,
        n_head=setup.num_heads,
        bos_token_id=0,
        eos_token_id=0,
        **rates,
    )
    return AutoModelForCausalLM.from_config(config)


def main() -> None:
    """Train, print the perplexities of the test text, and leave the model, its tokenizer and `results.json`."""
    setup, args = parse(Setup, DynamicVocabTrainingArguments)
    run = Run(setup, args, outputs=(*ROW_OUTPUT, "results.json"))
    set_seed(args.seed)
    texts: DatasetDict = load_corpus(
        setup.dataset, config_name=setup.dataset_config, max_train_words=setup.max_train_words
    )
    named = setup.model_name_or_path or setup.tokenizer
    if named is not None:
        tokenizer = AutoTokenizer.from_pretrained(named)
    else:
        tokenizer = train_bpe_tokenizer(texts["train"]["text"], setup.vocab_size, setup.block_size)
    corpus = {str(split): pack_blocks(text, tokenizer, setup.block_size) for split, text in texts.items()}
    validation: Dataset = corpus["validation"]
    if setup.max_validation_blocks is not None:
        validation = validation.select(range(min(setup.max_validation_blocks, len(validation))))

    model = make_base(setup, len(tokenizer))
    collator: PhraseCollator | None = None
    if setup.phrases != "none":
        model = DynamicVocabForCausalLM.from_base(model, setup.phrase_encoder, tokenizer=tokenizer, **setup.losses())
        vocab_size = model.get_output_embeddings().weight.shape[0]
        collator = make_collator(setup, tokenizer, texts["train"]["text"], vocab_size)
    if setup.lora_rank is not None:
        model = add_lora(model, setup.lora_rank, alpha=setup.lora_alpha, dropout=setup.lora_dropout)
    trainer = DynamicVocabTrainer(
        model=model, args=args, data_collator=collator, train_dataset=corpus["train"], eval_dataset=validation
    )
    run.begin()
    training = train(trainer, resume=run.resume)
    metrics = trainer.evaluate(corpus["test"], metric_key_prefix="test")  # pyright: ignore[reportArgumentType]
    if args.process_index:
        return
    if setup.lora_rank is not None:
        model = cast(Any, model).merge_and_unload()
    model.save_pretrained(run.folder)
    tokenizer.save_pretrained(run.folder)
    results = {
        "settings": {**asdict(setup), **args.to_sanitized_dict()},
        "num_parameters": trainer.get_num_trainable_parameters(),
        "test": metrics,
        "history": training.history,
    }
    write_json(run.folder / "results.json", results)
    for name in ("perplexity", "best_path_perplexity"):
        if f"test_{name}" in metrics:
            print(f"test {name}: {metrics[f'test_{name}']:.2f}")
    print(f"Model and results: {run.folder}")


if __name__ == "__main__":
    main()
