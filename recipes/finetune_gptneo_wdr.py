"""Train a causal language model plainly, with simple N-gram heads and with word difference heads, and compare them.

On the documentation that ships with Python, from scratch, offline, in a few minutes on two CPU cores:
    accelerate launch recipes/finetune_gptneo_wdr.py recipes/settings/finetune_gptneo_wdr/smoke.yaml

As the paper fine-tunes GPT-Neo on WikiText-2, with three seeds (one 24 GB GPU, about a day a row and seed there;
expected 13.25 plain, 13.13 and 12.93 with the ensemble for the simple N-gram, 13.00 and 12.91 for word differences):
    accelerate launch recipes/finetune_gptneo_wdr.py recipes/settings/finetune_gptneo_wdr/paper.yaml
Any causal model, any text: --model_name_or_path EleutherAI/gpt-neo-125m --dataset my_text.txt.gz --output_dir mine
"""

from dataclasses import dataclass, field
from functools import partial

from transformers import AutoModelForCausalLM, GPTNeoConfig, PreTrainedModel

from hf_targets import (
    MODEL_OUTPUT,
    BlockSettings,
    CardFacts,
    ComparisonSettings,
    Experiment,
    LoraSettings,
    MultiTokenConfig,
    MultiTokenForCausalLM,
    MultiTokenTrainer,
    MultiTokenTrainingArguments,
    NewModelSettings,
    create_repository,
    describe_comparison,
    field_of,
    format_differences,
    format_perplexities,
    generate_sample,
    is_better,
    loadable_name,
    parse_settings,
    plot_learning_curves,
    repair_reformer,
    train_runs,
    training_histories,
    upload_folder,
    write_card,
)


@dataclass
class Setup(ComparisonSettings, BlockSettings, LoraSettings, NewModelSettings):
    """What is trained on what."""

    model_name_or_path: str | None = field(default=None, metadata={"help": "Base model. None: a new small GPT-Neo."})
    rows: list[str] = field(
        default_factory=lambda: ["plain", "simple", "wdr"], metadata={"help": "Which of plain, simple and wdr."}
    )
    simple_ngram_size: int = field(default=2, metadata={"help": "N of the simple N-gram."})
    simple_loss_weight: float = field(default=0.1, metadata={"help": "Alpha of the simple N-gram."})
    wdr_ngram_size: int = field(default=4, metadata={"help": "N of the word differences."})
    wdr_loss_weight: float = field(default=0.1, metadata={"help": "Alpha of the word differences."})
    block_size: int = field_of(BlockSettings, "block_size", 1024)
    vocab_size: int = field_of(NewModelSettings, "vocab_size", 2048)
    hidden_size: int = field_of(NewModelSettings, "hidden_size", 96)
    num_layers: int = field_of(NewModelSettings, "num_layers", 2, note="An even number.")
    prompt: str = field(default="The ", metadata={"help": "What the sample begins with."})

    def __post_init__(self) -> None:
        super().__post_init__()
        NewModelSettings.__post_init__(self)
        if unknown := set(self.rows) - {"plain", "simple", "wdr"}:
            raise ValueError(f"rows must be of plain, simple and wdr, got {', '.join(sorted(unknown))}")
        MultiTokenConfig(ngram_size=self.simple_ngram_size, loss_weight=self.simple_loss_weight)
        MultiTokenConfig(ngram_size=self.wdr_ngram_size, loss_weight=self.wdr_loss_weight)


def new_or_pretrained(setup: Setup, vocab_size: int) -> PreTrainedModel:
    """Return the model that training starts from."""
    if setup.model_name_or_path is not None:
        return repair_reformer(AutoModelForCausalLM.from_pretrained(setup.model_name_or_path))
    config = GPTNeoConfig(
        vocab_size=vocab_size,
        hidden_size=setup.hidden_size,
        num_layers=setup.num_layers,
        num_heads=setup.num_heads,
        attention_types=[[["global", "local"], setup.num_layers // 2]],
        max_position_embeddings=setup.block_size,
        **dict.fromkeys(("embed_dropout", "resid_dropout", "attention_dropout"), setup.dropout),
        **dict.fromkeys(("bos_token_id", "eos_token_id"), 0),
    )
    return AutoModelForCausalLM.from_config(config)


def make_model(setup: Setup, vocab_size: int, name: str) -> PreTrainedModel:
    """Return an untrained model by its name."""
    model = new_or_pretrained(setup, vocab_size)
    if name != "plain":
        simple = name == "simple"
        model = MultiTokenForCausalLM.from_base(
            model,
            target="embedding" if simple else "difference",
            ngram_size=setup.simple_ngram_size if simple else setup.wdr_ngram_size,
            loss_weight=setup.simple_loss_weight if simple else setup.wdr_loss_weight,
        )
    return setup.with_lora(model)


def main() -> None:
    """Train the models with each seed, print their table, and leave the best of the last ones with its card."""
    setup, args = parse_settings(Setup, MultiTokenTrainingArguments)
    outputs = (*MODEL_OUTPUT, "learning_curves.png", "results.json")
    experiment = Experiment(setup, args, models=setup.rows, seeds=setup.seeds, outputs=outputs)
    texts = setup.load()
    tokenizer = setup.tokenizer_of(setup.model_name_or_path, texts, setup.vocab_size)
    corpus = setup.blocks(texts, tokenizer)
    make_model(setup, len(tokenizer), setup.rows[-1])  # whatever is wrong with it is told before the first run
    folder, name = experiment.folder, args.hub_model_id or loadable_name(experiment.folder)
    if args.push_to_hub and not args.process_index:
        create_repository(name, args)

    models = {name: partial(make_model, setup, len(tokenizer), name) for name in setup.rows}
    runs, best, model = [], None, None
    for runs, trainer in train_runs(models, args, corpus, experiment, make_trainer=MultiTokenTrainer, **setup.plan()):
        if runs[-1].name == setup.rows[-1] and is_better(runs[-1], best):
            best, model = runs[-1], trainer.model.cpu()  # pyright: ignore[reportOptionalMemberAccess]
    if args.process_index or best is None:
        return

    model = setup.merged(model)
    if best.ensemble_weight is not None:
        model.config.ensemble_weight = best.ensemble_weight  # it generates as it was measured
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    sample = generate_sample(model, tokenizer, setup.prompt, best.seed)
    plot_learning_curves(training_histories(runs), folder / "learning_curves.png")
    tables = f"{format_perplexities(runs)}\n\n{format_differences(runs)}"
    comparison = describe_comparison(runs, head_warmup_steps=args.head_warmup_steps)
    results = f"{comparison}\n\n{tables}\n\n![Learning curves](learning_curves.png)"
    stated = {"dataset": setup.dataset, "base_model": setup.model_name_or_path, **setup.stated()}
    facts = CardFacts(results=results, **stated)
    write_card(folder, name, facts, facts.of_run(best), seeds=setup.seeds, seed=best.seed, sample=sample)
    print(f"\n{tables}\n\nSample: {sample!r}")
    print(f"Model (seed {best.seed}), card and learning curves: {folder}")
    if args.push_to_hub:
        leave_out = [experiment.folder_of(run.name, run.seed).name for run in runs]
        print(f"Uploaded: {upload_folder(folder, name, args, leave_out=leave_out)}")


if __name__ == "__main__":
    main()
