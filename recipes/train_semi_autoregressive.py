"""Train Transformers with an LSTM that predicts the next N words at once: as words, and as a sentence curve.

Section 5.4 of the sentence curve paper on WikiText-2 (one GPU; its average perplexities are 295.33, 366.14 and 420.32
with words and 287.75, 358.37 and 411.89 with curves, for N = 3, 4 and 5):

    HF_TARGETS_DATA=data accelerate launch recipes/train_semi_autoregressive.py \
        recipes/settings/train_semi_autoregressive/paper.yaml

At a size for a CPU: `.../cpu.yaml`; in a minute, on documentation: `.../smoke.yaml`. Each run also leaves what figure 6
shows: how much the words of a block depend on each other. Measured: recipes/semi_autoregressive.md.
"""

from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from transformers import AutoModelForCausalLM

from hf_targets import (
    BLOCK_METRICS,
    BLOCK_PERPLEXITIES,
    BLOCK_USAGE,
    BlockSettings,
    CardFacts,
    ComparisonSettings,
    DependenceSettings,
    Experiment,
    ModelSizeSettings,
    SemiAutoregressiveForCausalLM,
    SemiAutoregressiveTrainer,
    TargetTrainingArguments,
    block_rows,
    describe_comparison,
    field_of,
    format_columns,
    format_differences,
    load_corpus,
    metrics_by_name,
    parse_settings,
    plot_dependence,
    plot_learning_curves,
    train_runs,
    training_histories,
    word_level_tokenizer,
    write_cards,
    write_json,
)

ROWS = (
    '{"words-3": {"ngram_size": 3}, '
    '"curves-3": {"ngram_size": 3, "curve": {"num_control_points": 18, "degree": 6, "num_curves": 4}}}'
)


@dataclass
class Setup(ComparisonSettings, BlockSettings, ModelSizeSettings, DependenceSettings):
    """The models of appendix B.3."""

    dataset: str = field_of(BlockSettings, "dataset", "wikitext-2")
    block_size: int = field_of(BlockSettings, "block_size", 128)
    hidden_size: int = field_of(ModelSizeSettings, "hidden_size", 512)
    feed_forward_size: int = field(default=1024, metadata={"help": "Width of the feed-forward layers, d_ff."})
    num_layers: int = field_of(ModelSizeSettings, "num_layers", 6)
    dropout: float = field_of(ModelSizeSettings, "dropout", 0.3)
    vocab_size: int | None = field(
        default=None, metadata={"help": "Byte-pair pieces, trained on the text; None: all words of the training text."}
    )
    rows: str = field(
        default=ROWS, metadata={"help": "JSON: names of models, and their ngram_size and curve (null: words)."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for part in (ModelSizeSettings, DependenceSettings):
            part.__post_init__(self)
        block_rows(self.rows)


def make_model(setup: Setup, vocab_size: int, row: dict[str, Any]) -> SemiAutoregressiveForCausalLM:
    """Return the untrained model of a row."""
    config = setup.gpt2_config(vocab_size=vocab_size, num_positions=setup.block_size, n_inner=setup.feed_forward_size)
    return SemiAutoregressiveForCausalLM.from_base(AutoModelForCausalLM.from_config(config), **row)


def main() -> None:
    """Train the models with each seed, print a table for each N, and leave each model with its card, and figures."""
    setup, args = parse_settings(Setup, TargetTrainingArguments)
    rows = block_rows(setup.rows)
    outputs = ("learning_curves.png", "dependence.png", "dependence.json", "results.json")
    experiment = Experiment(setup, args, outputs=outputs, models=list(rows), seeds=setup.seeds)
    texts = setup.load()
    if setup.vocab_size is None:  # the vocabulary does not shrink with max_train_words
        whole = load_corpus(setup.dataset, config_name=setup.dataset_config, text_column=setup.text_column)
        tokenizer = word_level_tokenizer(whole["train"]["text"])
    else:
        tokenizer = setup.tokenizer_of(None, texts, setup.vocab_size)
    corpus = setup.blocks(texts, tokenizer)
    models = {name: partial(make_model, setup, len(tokenizer), row) for name, row in rows.items()}
    runs, dependence, make = [], {}, SemiAutoregressiveTrainer
    for runs, trainer in train_runs(models, args, corpus, experiment, make_trainer=make, **setup.plan()):
        if not trainer.is_world_process_zero():
            continue
        run, model, folder = runs[-1], trainer.model, experiment.folder_of(runs[-1].name, runs[-1].seed)
        model.save_pretrained(folder)  # pyright: ignore
        tokenizer.save_pretrained(folder)
        dependence.setdefault(run.name, []).append(setup.measured(model, corpus["test"], run.seed))  # pyright: ignore
        found = {name: [[asdict(one) for one in seed] for seed in seeds] for name, seeds in dependence.items()}
        write_json(experiment.folder / "dependence.json", {"settings": asdict(setup), "rows": found})
    if args.process_index:
        return
    tables = []
    for ngram_size in dict.fromkeys(row.get("ngram_size", 3) for row in rows.values()):
        alike = [run for run in runs if rows[run.name].get("ngram_size", 3) == ngram_size]
        tables += [format_columns(metrics_by_name(alike)), format_differences(alike)]
    plot_learning_curves(training_histories(runs), experiment.folder / "learning_curves.png")
    plot_dependence(dependence, experiment.folder / "dependence.png")
    results = "\n\n".join([describe_comparison(runs), BLOCK_PERPLEXITIES, *filter(None, tables)])
    facts = CardFacts(
        dataset=setup.dataset, results=results, usage=BLOCK_USAGE, metrics=BLOCK_METRICS, **setup.stated()
    )
    write_cards(experiment, runs, facts)
    print(f"\n{results}\n\nModels, cards and figures: {experiment.folder}")


if __name__ == "__main__":
    main()
