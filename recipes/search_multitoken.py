"""Search N, alpha and lambda for a small decoder with heads, on the validation text, for each target.

Each pair of N and alpha is trained once a seed; all lambdas are evaluated in one pass. It prints a table of validation
perplexities, draws a heat map, names the best triple of each target, and measures only that on the test text. At a size
for a CPU, with one seed:

    HF_TARGETS_DATA=data python recipes/search_multitoken.py recipes/settings/search_multitoken/cpu.yaml

The decoder of the paper (table 8 has the triples of its search): `.../paper.yaml`, on one GPU; in a minute, on
documentation: `.../smoke.yaml`. Other decoders: `--architecture reformer` or `tensorized`.
"""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from transformers import PreTrainedModel

from hf_targets import (
    BlockSettings,
    CardFacts,
    ComparisonSettings,
    DecoderSettings,
    Experiment,
    MultiTokenForCausalLM,
    MultiTokenTrainer,
    MultiTokenTrainingArguments,
    SearchSettings,
    check_lambdas,
    chosen_outcomes,
    describe_search,
    field_of,
    format_chosen,
    format_search,
    load_corpus,
    parse_settings,
    plot_search,
    search_outcomes,
    train_runs,
    word_level_tokenizer,
    write_cards,
    write_json,
)


@dataclass
class Setup(ComparisonSettings, BlockSettings, DecoderSettings, SearchSettings):
    """The decoder of table 6, and the grid."""

    dataset: str = field_of(BlockSettings, "dataset", "ptb")
    block_size: int = field_of(BlockSettings, "block_size", 64)
    hidden_size: int = field_of(DecoderSettings, "hidden_size", 256)
    num_layers: int = field_of(DecoderSettings, "num_layers", 6)
    dropout: float = field_of(DecoderSettings, "dropout", 0.3)
    patience: int | None = field_of(ComparisonSettings, "patience", 50)

    def __post_init__(self) -> None:
        super().__post_init__()
        DecoderSettings.__post_init__(self)
        SearchSettings.__post_init__(self)
        self.check_block_size(self.block_size, self.ngram_sizes)
        if self.paper_leaky:
            raise ValueError(
                "a search compares perplexities, and those of models with paper_leaky cannot be compared: they read "
                "what they predict; leave paper_leaky out, or measure one such model with train_small_lm.py"
            )


def make_model(setup: Setup, vocab_size: int, heads: dict[str, Any] | None) -> PreTrainedModel:
    """Return an untrained model; a plain one without heads."""
    model = setup.new_decoder(vocab_size, setup.block_size)
    return model if heads is None else MultiTokenForCausalLM.from_base(model, **heads)


def main() -> None:
    """Train the grid, print its table, draw it, and leave the chosen models with their tokenizers and cards."""
    setup, args = parse_settings(Setup, MultiTokenTrainingArguments)
    check_lambdas(args.ensemble_weights)
    points = setup.points()
    wanted = {"plain": None, **{point.name: point.heads for point in points}}
    outputs = ("search.png", "search.json", "results.json", "chosen.json")
    experiment = Experiment(setup, args, outputs=outputs, models=list(wanted), seeds=setup.seeds)
    whole = load_corpus(setup.dataset, config_name=setup.dataset_config, text_column=setup.text_column)
    tokenizer = word_level_tokenizer(whole["train"]["text"])  # the vocabulary does not shrink with max_train_words
    corpus = setup.blocks(setup.load(), tokenizer)
    searched = {split: corpus[split] for split in ("train", "validation")}

    models = {name: partial(make_model, setup, len(tokenizer), heads) for name, heads in wanted.items()}
    train = partial(train_runs, make_trainer=MultiTokenTrainer, **setup.plan())
    runs = list(train(models, args, searched, experiment))[-1][0]
    outcomes = search_outcomes(points, runs, args.ensemble_weights)
    chosen = {one.point.name: one for one in chosen_outcomes(outcomes)}
    again, measured = {name: models[name] for name in chosen}, []
    for measured, trainer in train(again, args, corpus, experiment, resume=True, results_name="chosen.json"):
        if trainer.is_world_process_zero():
            folder = experiment.folder_of(measured[-1].name, measured[-1].seed)
            model: Any = trainer.model
            model.config.ensemble_weight = chosen[measured[-1].name].ensemble_weight
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    if args.process_index:
        return
    told = describe_search(outcomes, runs)
    tables = f"{format_search(outcomes)}\n\n{format_chosen(list(chosen.values()), measured)}"
    plot_search(outcomes, experiment.folder / "search.png")
    write_json(experiment.folder / "search.json", [asdict(outcome) for outcome in outcomes])
    for name, one in chosen.items():
        metrics = {"perplexity": "perplexity", f"perplexity_{one.ensemble_weight:g}": "perplexity with ensemble"}
        facts = CardFacts(
            dataset=setup.dataset,
            results="\n\n".join(filter(None, [setup.note(), told, tables])),
            metrics=metrics,
            **setup.stated(),
        )
        write_cards(experiment, [run for run in measured if run.name == name], facts)
    print(f"\n{told}\n\n{tables}\n\nThe heat map and the chosen models: {experiment.folder}")


if __name__ == "__main__":
    main()
