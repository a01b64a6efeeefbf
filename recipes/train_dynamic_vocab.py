"""Train causal language models side by side: plain, and reading and generating phrases chosen when they are called.

From scratch, on the documentation that ships with Python, offline, in a minute (that it runs, not what it can reach):
    python recipes/train_dynamic_vocab.py recipes/settings/train_dynamic_vocab/smoke.yaml

As the paper trains GPT-2 on WikiText-103 (two 24 GB GPUs, 400,000 steps there; table 1's MAUVE 25.69, Diversity 47.44,
against 20.47 and 24.30 of GPT-2 fine-tuned without phrases):
    accelerate launch recipes/train_dynamic_vocab.py recipes/settings/train_dynamic_vocab/paper.yaml
TinyLlama with LoRA, its phrase encoder begun as GPT-2 (table 4's MAUVE 22.54, Diversity 53.99): `.../tinyllama.yaml`.
On WikiText-2 from scratch at a size for two CPU cores: `.../cpu.yaml`; measured in recipes/README.md.
Any causal model, any text, each row with every seed:
    --model_name_or_path gpt2 --dataset my_text.txt.gz --output_dir mine --seeds 0 1 2 \
    --rows '{"plain": {"phrases": "none"}, "ours": {}, "fmm": {"phrases": "fmm"}}'
"""

from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from hf_targets.training.runs import Run
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GPT2Config, PreTrainedModel

from hf_targets import (
    DynamicVocabForCausalLM,
    DynamicVocabTrainer,
    DynamicVocabTrainingArguments,
    PhraseCollator,
    add_lora,
    load_corpus,
    pack_blocks,
    train_bpe_tokenizer,
)
from hf_targets.evaluation.continuations import format_columns
from hf_targets.phrases.settings import PhraseSettings, make_collator, phrase_rows
from hf_targets.training.comparison import train_rows
from hf_targets.training.seeds import SeedSettings, row_folder
from hf_targets.training.settings import parse
from hf_targets.training.tables import by_name, format_bounds, format_differences


@dataclass
class Setup(SeedSettings, PhraseSettings):
    """What is trained on what."""

    rows: str = field(
        default='{"plain": {"phrases": "none"}, "ours": {}}',
        metadata={"help": "JSON: names of models, and the settings of phrases and losses in which each differs."},
    )
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

    def __post_init__(self) -> None:
        SeedSettings.__post_init__(self)
        PhraseSettings.__post_init__(self)


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


def make_model(setup: Setup, row: PhraseSettings, tokenizer: Any) -> PreTrainedModel:
    """Return the model that a row starts from."""
    model = make_base(setup, len(tokenizer))
    if row.phrases != "none":
        model = DynamicVocabForCausalLM.from_base(model, setup.phrase_encoder, tokenizer=tokenizer, **row.losses())
    if setup.lora_rank is not None:
        return add_lora(model, setup.lora_rank, alpha=setup.lora_alpha, dropout=setup.lora_dropout)
    return model


def make_trainer(collator: PhraseCollator | None, args: DynamicVocabTrainingArguments, **kwargs: Any):
    """Return the trainer of a row; without phrases there is no encoder to have a learning rate of its own."""
    if collator is None:
        args.encoder_learning_rate = None
    return DynamicVocabTrainer(args=args, data_collator=collator, **kwargs)


def main() -> None:
    """Train the rows with each seed; leave each model with its tokenizer, `results.json`, and print the tables."""
    setup, args = parse(Setup, DynamicVocabTrainingArguments)
    settings = phrase_rows(setup.rows, setup)
    run = Run(setup, args, outputs=("results.json",), rows=list(settings), seeds=setup.seeds)
    texts = load_corpus(setup.dataset, config_name=setup.dataset_config, max_train_words=setup.max_train_words)
    if named := setup.model_name_or_path or setup.tokenizer:
        tokenizer = AutoTokenizer.from_pretrained(named)
    else:
        tokenizer = train_bpe_tokenizer(texts["train"]["text"], setup.vocab_size, setup.block_size)
    corpus = {str(split): pack_blocks(text, tokenizer, setup.block_size) for split, text in texts.items()}
    if (most := setup.max_validation_blocks) is not None:
        corpus["validation"] = corpus["validation"].take(min(most, len(corpus["validation"])))

    base = setup.model_name_or_path
    vocab_size = len(tokenizer) if base is None else AutoConfig.from_pretrained(base).get_text_config().vocab_size
    models = {name: partial(make_model, setup, row, tokenizer) for name, row in settings.items()}
    trainers = {
        name: partial(
            make_trainer,
            None if row.phrases == "none" else make_collator(row, tokenizer, texts["train"]["text"], vocab_size),
        )
        for name, row in settings.items()
    }
    table = {"seeds": setup.seeds, "settings": asdict(setup)}
    for rows, trainer in train_rows(models, args, corpus, run, make_trainer=trainers, **table):
        if not trainer.is_world_process_zero():
            continue
        folder = run.folder / row_folder(rows[-1].name, rows[-1].seed)
        model: Any = trainer.model
        if setup.lora_rank is not None:
            model = model.merge_and_unload()
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        both = format_columns({name: [row.test for row in seeds] for name, seeds in by_name(rows).items()})
        print(f"\n{format_bounds(rows)}\n\n{both}\n\n{format_differences(rows)}\n", flush=True)


if __name__ == "__main__":
    main()
