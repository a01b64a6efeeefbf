"""Train causal language models side by side: plain, and reading and generating phrases chosen when they are called.

From scratch, on the documentation that ships with Python, offline, in two minutes
(a quick check, enough to show phrases):
    python recipes/train_dynamic_vocab.py recipes/settings/train_dynamic_vocab/smoke.yaml

As the paper trains GPT-2 on WikiText-103 (two 24 GB GPUs, 400,000 steps there; table 1's MAUVE 25.69, Diversity 47.44,
against 20.47 and 24.30 of GPT-2 fine-tuned without phrases):
    accelerate launch recipes/train_dynamic_vocab.py recipes/settings/train_dynamic_vocab/paper.yaml
TinyLlama with LoRA, its phrase encoder begun as GPT-2 (table 4's MAUVE 22.54, Diversity 53.99): `.../tinyllama.yaml`.
On WikiText-2 from scratch at a size for two CPU cores: `.../cpu.yaml`; measured in recipes/phrases.md.
Any causal model, any text, each row with every seed:
    --model_name_or_path gpt2 --dataset my_text.txt.gz --output_dir mine --seeds 0 1 2 \
    --rows '{"plain": {"phrases": "none"}, "ours": {}, "fmm": {"phrases": "fmm"}}'
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from hf_targets import (
    PHRASE_USAGE,
    BlockSettings,
    CardFacts,
    ComparisonSettings,
    DynamicVocabForCausalLM,
    DynamicVocabTrainer,
    DynamicVocabTrainingArguments,
    Experiment,
    LoraSettings,
    NewModelSettings,
    PhraseSettings,
    describe_comparison,
    field_of,
    format_bounds,
    format_columns,
    format_differences,
    make_phrase_collator,
    metrics_by_name,
    parse_settings,
    phrase_rows,
    repair_reformer,
    train_runs,
    write_cards,
)


@dataclass
class Setup(ComparisonSettings, PhraseSettings, BlockSettings, LoraSettings, NewModelSettings):
    """What is trained on what."""

    rows: str = field(
        default='{"plain": {"phrases": "none"}, "ours": {}}',
        metadata={"help": "JSON: names of models, and the settings of phrases and losses in which each differs."},
    )
    model_name_or_path: str | None = field(default=None, metadata={"help": "Base model. None: a new small GPT-2."})
    phrase_encoder: str | None = field(
        default=None, metadata={"help": "What the phrase encoder begins as. None: a copy of the base model."}
    )
    tokenizer: str | None = field(default=None, metadata={"help": "Of a new model. None: one trained on the text."})
    lora_alpha: int = field_of(LoraSettings, "lora_alpha", 32)
    lora_dropout: float = field_of(LoraSettings, "lora_dropout", 0.1)

    def __post_init__(self) -> None:
        ComparisonSettings.__post_init__(self)
        PhraseSettings.__post_init__(self)
        NewModelSettings.__post_init__(self)


def make_base(setup: Setup, vocab_size: int) -> PreTrainedModel:
    """Return the model that training starts from."""
    if setup.model_name_or_path is not None:
        return repair_reformer(AutoModelForCausalLM.from_pretrained(setup.model_name_or_path))
    config = setup.gpt2_config(vocab_size=vocab_size, num_positions=setup.block_size, bos_token_id=0, eos_token_id=0)
    return AutoModelForCausalLM.from_config(config)


def make_model(setup: Setup, row: PhraseSettings, tokenizer: Any) -> PreTrainedModel:
    """Return the model that a row starts from."""
    model = make_base(setup, len(tokenizer))
    if row.phrases != "none":
        model = DynamicVocabForCausalLM.from_base(model, setup.phrase_encoder, tokenizer=tokenizer, **row.losses())
    return setup.with_lora(model)


def main() -> None:
    """Train the models with each seed, print their tables, and leave each with its tokenizer and card."""
    setup, args = parse_settings(Setup, DynamicVocabTrainingArguments)
    wanted = phrase_rows(setup.rows, setup)
    experiment = Experiment(setup, args, outputs=("results.json",), models=list(wanted), seeds=setup.seeds)
    texts = setup.load()
    tokenizer = setup.tokenizer_of(setup.model_name_or_path or setup.tokenizer, texts, setup.vocab_size)
    corpus = setup.blocks(texts, tokenizer)

    base = setup.model_name_or_path
    vocab_size = len(tokenizer) if base is None else AutoConfig.from_pretrained(base).get_text_config().vocab_size
    models = {name: partial(make_model, setup, row, tokenizer) for name, row in wanted.items()}
    trainers: dict[str, Any] = dict.fromkeys(wanted, DynamicVocabTrainer)
    for name, row in wanted.items():
        if row.phrases != "none":
            collator = make_phrase_collator(row, tokenizer, texts["train"]["text"], vocab_size)
            trainers[name] = partial(DynamicVocabTrainer, data_collator=collator)
    runs = []
    for runs, trainer in train_runs(models, args, corpus, experiment, make_trainer=trainers, **setup.plan()):
        if trainer.is_world_process_zero():
            folder = experiment.folder_of(runs[-1].name, runs[-1].seed)
            setup.merged(trainer.model).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    if args.process_index:
        return
    both = format_columns(metrics_by_name(runs))
    tables = f"{format_bounds(runs)}\n\n{both}\n\n{format_differences(runs)}"
    facts = CardFacts(
        dataset=setup.dataset,
        results=f"{describe_comparison(runs)}\n\n{tables}",
        usage=PHRASE_USAGE,
        base_model=base,
        **setup.stated(),
    )
    write_cards(experiment, runs, facts)
    print(f"\n{tables}\n\nModels and cards: {experiment.folder}")


if __name__ == "__main__":
    main()
