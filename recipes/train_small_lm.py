"""Train a small decoder on words: plain, with simple N-gram heads and with word differences.

The whole of table 1 (one GPU; the paper's test perplexities are 161.0 plain, 133.6 to 158.1 for the simple 4-gram and
124.1 to 150.5 for the word difference 4-gram, by ensemble weight):

    HF_TARGETS_DATA=data accelerate launch recipes/train_small_lm.py recipes/settings/train_small_lm/paper.yaml

Its rows of N = 3 with three seeds, at a size for a CPU: `.../cpu.yaml`; in a minute, on documentation:
`.../smoke.yaml`. The rows of table 2, of Tensorized Transformers and Reformers: `.../tensorized_ptb.yaml` and
`.../reformer_ptb.yaml`, and likewise wikitext2, text8 and wikitext103; at a size for a CPU `.../tensorized_cpu.yaml`
and `.../reformer_cpu.yaml`. Measured: recipes/multitoken.md.
"""

from dataclasses import dataclass, field
from functools import partial

from transformers import PreTrainedModel

from hf_targets import (
    LEAKY_USAGE,
    BlockSettings,
    CardFacts,
    ComparisonSettings,
    DecoderSettings,
    Experiment,
    MultiTokenForCausalLM,
    MultiTokenTrainer,
    MultiTokenTrainingArguments,
    describe_comparison,
    field_of,
    format_differences,
    format_perplexities,
    format_weights,
    load_corpus,
    parse_settings,
    plot_learning_curves,
    train_runs,
    training_histories,
    word_level_tokenizer,
    write_cards,
)


@dataclass
class Setup(ComparisonSettings, BlockSettings, DecoderSettings):
    """The decoder of table 6, and the rows of table 1."""

    dataset: str = field_of(BlockSettings, "dataset", "ptb")
    block_size: int = field_of(BlockSettings, "block_size", 64)
    hidden_size: int = field_of(DecoderSettings, "hidden_size", 256)
    num_layers: int = field_of(DecoderSettings, "num_layers", 6)
    dropout: float = field_of(DecoderSettings, "dropout", 0.3)
    ngram_sizes: list[int] = field(default_factory=lambda: [2, 3, 4], metadata={"help": "N of the models with heads."})
    targets: list[str] = field(
        default_factory=lambda: ["embedding", "difference"],
        metadata={"help": '"embedding" for the simple N-gram, "difference" for word differences.'},
    )
    loss_weight: float = field(default=1.0, metadata={"help": "Alpha; 1 for all decoders on this corpus in table 8."})
    patience: int | None = field_of(ComparisonSettings, "patience", 50)

    def __post_init__(self) -> None:
        super().__post_init__()
        DecoderSettings.__post_init__(self)
        self.check_block_size(self.block_size, self.ngram_sizes)
        if unknown := set(self.targets) - {"embedding", "difference"}:
            raise ValueError(f"targets must be of embedding and difference, got {', '.join(sorted(unknown))}")


def make_model(setup: Setup, vocab_size: int, target: str | None, ngram_size: int) -> PreTrainedModel:
    """Return an untrained model; a plain one without a target."""
    model = setup.new_decoder(vocab_size, setup.block_size)
    if target is None:
        return model
    return MultiTokenForCausalLM.from_base(model, target=target, ngram_size=ngram_size, loss_weight=setup.loss_weight)


def main() -> None:
    """Train the models with each seed, print their tables, and leave each model with its tokenizer and card."""
    setup, args = parse_settings(Setup, MultiTokenTrainingArguments)
    wanted: dict[str, tuple[str | None, int]] = {setup.row_name("plain"): (None, 1)}
    for target in setup.targets:
        for ngram_size in setup.ngram_sizes:
            name = f"{'simple' if target == 'embedding' else 'wdr'}-{ngram_size}"
            wanted[setup.row_name(name)] = (target, ngram_size)
    outputs = ("learning_curves.png", "results.json")
    experiment = Experiment(setup, args, outputs=outputs, models=list(wanted), seeds=setup.seeds)
    whole = load_corpus(setup.dataset, config_name=setup.dataset_config, text_column=setup.text_column)
    tokenizer = word_level_tokenizer(whole["train"]["text"])  # the vocabulary does not shrink with max_train_words
    corpus = setup.blocks(setup.load(), tokenizer)

    models = {name: partial(make_model, setup, len(tokenizer), *heads) for name, heads in wanted.items()}
    runs = []
    for runs, trainer in train_runs(models, args, corpus, experiment, make_trainer=MultiTokenTrainer, **setup.plan()):
        if trainer.is_world_process_zero():
            folder = experiment.folder_of(runs[-1].name, runs[-1].seed)
            trainer.model.save_pretrained(folder)  # pyright: ignore
            tokenizer.save_pretrained(folder)
    if args.process_index:
        return
    tables = f"{format_perplexities(runs)}\n\n{format_weights(runs)}\n\n{format_differences(runs)}"
    plot_learning_curves(training_histories(runs), experiment.folder / "learning_curves.png")
    tables = "\n\n".join(filter(None, [setup.note(), tables]))
    results = f"{describe_comparison(runs, head_warmup_steps=args.head_warmup_steps)}\n\n{tables}"
    usage = LEAKY_USAGE if setup.paper_leaky else None
    write_cards(experiment, runs, CardFacts(dataset=setup.dataset, results=results, usage=usage, **setup.stated()))
    print(f"\n{tables}\n\nModels, cards and learning curves: {experiment.folder}")


if __name__ == "__main__":
    main()
