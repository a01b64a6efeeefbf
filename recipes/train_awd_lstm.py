"""Train AWD-LSTMs with and without cosine regularisation, finetune them, and add the continuous cache.

The language models of the paper (one GPU; its test perplexities on WikiText-2 are 66.0 and 65.2 with gamma = 1, then
65.8 and 64.1 finetuned, then 52.0 and 50.0 with the cache), and the published AWD-LSTM on Penn Treebank (58.8, 56.5
and 52.5):

    HF_TARGETS_DATA=data accelerate launch recipes/train_awd_lstm.py recipes/settings/train_awd_lstm/wikitext2.yaml
    HF_TARGETS_DATA=data accelerate launch recipes/train_awd_lstm.py recipes/settings/train_awd_lstm/ptb.yaml

At a size for a CPU: `.../ptb_cpu.yaml` and `.../wikitext2_cpu.yaml`; in a minute, on documentation: `.../smoke.yaml`.
Measured: recipes/cosine.md.
"""

from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_targets import (
    AWD_LSTM_USAGE,
    AwdLstmConfig,
    AwdLstmForCausalLM,
    AwdLstmTrainingArguments,
    BlockSettings,
    CacheSettings,
    CardFacts,
    ComparisonSettings,
    Experiment,
    LstmRow,
    describe_comparison,
    embedding_geometry,
    equally_trained,
    field_of,
    format_column_differences,
    format_columns,
    load_corpus,
    lstm_rows,
    parse_settings,
    plot_learning_curves,
    train_runs,
    training_histories,
    word_level_tokenizer,
    write_cards,
    write_json,
)

ROWS = (
    '{"plain": {}, "plain-finetuned": {"finetunes": "plain"}, "cosine": {"cosine_weight": 1}, '
    '"cosine-finetuned": {"cosine_weight": 1, "finetunes": "cosine"}}'
)


@dataclass
class Setup(ComparisonSettings, BlockSettings, CacheSettings):
    """The models of awd-lstm-lm and of the paper's table 1."""

    dataset: str = field_of(BlockSettings, "dataset", "wikitext-2")
    block_size: int = field_of(
        BlockSettings,
        "block_size",
        128,
        note="Blocks are joined again, so it only counts max_validation_blocks.",
    )
    vocab_size: int | None = field(
        default=None, metadata={"help": "Byte-pair pieces, trained on the text; None: all words of the training text."}
    )
    embedding_size: int = field_of(AwdLstmConfig, "embedding_size")
    hidden_size: int = field_of(AwdLstmConfig, "hidden_size")
    num_hidden_layers: int = field_of(AwdLstmConfig, "num_hidden_layers")
    embedding_dropout: float = field_of(AwdLstmConfig, "embedding_dropout")
    input_dropout: float = field_of(AwdLstmConfig, "input_dropout")
    hidden_dropout: float = field_of(AwdLstmConfig, "hidden_dropout")
    output_dropout: float = field_of(AwdLstmConfig, "output_dropout")
    weight_dropout: float = field_of(AwdLstmConfig, "weight_dropout")
    activation_weight: float = field_of(AwdLstmConfig, "activation_weight")
    temporal_weight: float = field_of(AwdLstmConfig, "temporal_weight")
    finetune_epochs: float = field(default=500.0, metadata={"help": "Most epochs of a row that finetunes."})
    rows: str = field(
        default=ROWS,
        metadata={"help": "JSON: names of models, and their cosine_weight and the row that they finetune."},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        CacheSettings.__post_init__(self)
        self.config(vocab_size=1)  # raises an error if a field is out of range
        lstm_rows(self.rows)

    def config(self, **fields: Any) -> AwdLstmConfig:
        """Return the configuration of all models."""
        shared = AwdLstmConfig.__dataclass_fields__.keys() & asdict(self).keys() - {"vocab_size"}
        return AwdLstmConfig(**{name: getattr(self, name) for name in shared}, **fields)


def make_model(
    setup: Setup, tokenizer: PreTrainedTokenizerBase, row: LstmRow, trained: dict[str, Path]
) -> AwdLstmForCausalLM:
    """Return a model to train: with new weights, or the trained one of this seed that the row finetunes."""
    if row.finetunes is not None:
        return AwdLstmForCausalLM.from_pretrained(trained[row.finetunes])
    return AwdLstmForCausalLM(setup.config(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id))  # pyright: ignore


def main() -> None:
    """Train the models with each seed, measure them with the cache, and leave each with its tokenizer and card."""
    setup, args = parse_settings(Setup, AwdLstmTrainingArguments)
    rows = lstm_rows(setup.rows)
    outputs = ("learning_curves.png", "results.json", "scores.json")
    experiment = Experiment(setup, args, outputs=outputs, models=list(rows), seeds=setup.seeds)
    texts = setup.load()
    if setup.vocab_size is None:  # the vocabulary does not shrink with max_train_words
        whole = load_corpus(setup.dataset, config_name=setup.dataset_config, text_column=setup.text_column)
        tokenizer = word_level_tokenizer(whole["train"]["text"])
    else:
        tokenizer = setup.tokenizer_of(None, texts, setup.vocab_size)
    corpus, trained = setup.blocks(texts, tokenizer), {}
    models = {name: partial(make_model, setup, tokenizer, row, trained) for name, row in rows.items()}
    trainers = {name: row.trainer_of(setup.finetune_epochs) for name, row in rows.items()}
    runs, scores, caches = [], {}, {}
    for runs, trainer in train_runs(models, args, corpus, experiment, make_trainer=trainers, **setup.plan()):
        run, model = runs[-1], trainer.model
        folder = trained[run.name] = experiment.folder_of(run.name, run.seed)
        if trainer.is_world_process_zero():
            model.save_pretrained(folder)  # pyright: ignore
            tokenizer.save_pretrained(folder)
            cache, found = setup.measured(model, corpus["validation"], corpus["test"], carries_state=True)  # pyright: ignore
            geometry = embedding_geometry(model)
            found |= {"mean cosine, %": 100 * geometry.mean_cosine, "effective rank": geometry.effective_rank}
            scores.setdefault(run.name, []).append(found)
            caches.setdefault(run.name, []).append(asdict(cache))
            told = " ".join(f"{column} {value:.2f}," for column, value in found.items())
            print(f"{run.name}, seed {run.seed}: {told} {cache}", flush=True)
            content = {"settings": asdict(setup), "scores": scores, "caches": caches}
            write_json(experiment.folder / "scores.json", content)
        trainer.accelerator.wait_for_everyone()  # the next row may finetune this model
    if args.process_index:
        return
    groups = [{name: scores[name] for name in group} for group in equally_trained(rows)]
    told = describe_comparison(runs, finetuned={name: row.finetunes for name, row in rows.items() if row.finetunes})
    results = "\n\n".join(filter(None, [told, format_columns(scores), *map(format_column_differences, groups)]))
    plot_learning_curves(training_histories(runs), experiment.folder / "learning_curves.png")
    facts = CardFacts(dataset=setup.dataset, results=results, usage=AWD_LSTM_USAGE, **setup.stated())
    write_cards(experiment, runs, facts)
    print(f"\n{results}\n\nModels, cards and learning curves: {experiment.folder}")


if __name__ == "__main__":
    main()
