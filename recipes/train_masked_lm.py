"""Train masked models: plain, with word differences as in the paper, and with differences of masked words alone.

What appendix A.3 of the earlier paper does with CrammedBERT, on WikiText-2:

    HF_TARGETS_DATA=data accelerate launch recipes/train_masked_lm.py recipes/settings/train_masked_lm/paper.yaml

At a size for a CPU: `.../crammed_cpu.yaml`, and `.../cpu.yaml` with a BERT; in a minute, on documentation:
`.../smoke.yaml`. `backbone` in the folder of each model is what recipes/evaluate_glue.py fine-tunes. Notes:
recipes/masked_models.md.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase

from hf_targets import (
    MASKED_USAGE,
    BlockSettings,
    CardFacts,
    ComparisonSettings,
    Experiment,
    ModelSizeSettings,
    MultiTokenForMaskedLM,
    MultiTokenMaskedTrainer,
    MultiTokenMaskedTrainingArguments,
    describe_comparison,
    enclosed_blocks,
    field_of,
    format_columns,
    format_differences,
    masked_model_rows,
    metrics_by_name,
    parse_settings,
    plot_learning_curves,
    train_masking_tokenizer,
    train_runs,
    training_histories,
    write_cards,
)
from hf_targets.training.outputs import BACKBONE

ROWS = '{"plain": null, "wdr": {"ngram_size": 2}, "wdr-masked-only": {"ngram_size": 2, "masked_only": true}}'


@dataclass
class Setup(ComparisonSettings, BlockSettings, ModelSizeSettings):
    """Masked models with and without heads."""

    dataset: str = field_of(BlockSettings, "dataset", "wikitext-2")
    architecture: str = field(default="bert", metadata={"help": '"bert" or "crammed_bert".'})
    block_size: int = field_of(BlockSettings, "block_size", 128)
    hidden_size: int = field_of(ModelSizeSettings, "hidden_size", 768)
    feed_forward_size: int = field(default=3072, metadata={"help": "Width of the feed-forward layers, d_ff."})
    num_layers: int = field_of(ModelSizeSettings, "num_layers", 12)
    num_heads: int = field_of(ModelSizeSettings, "num_heads", 12)
    vocab_size: int = field(default=32768, metadata={"help": "Byte-pair pieces, trained on the text."})
    rows: str = field(
        default=ROWS, metadata={"help": "JSON: names of models, and null for a plain one or the fields of its heads."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        ModelSizeSettings.__post_init__(self)
        if self.architecture not in ("bert", "crammed_bert"):
            raise ValueError(f'architecture must be "bert" or "crammed_bert", got {self.architecture!r}')
        masked_model_rows(self.rows)


def make_model(setup: Setup, tokenizer: PreTrainedTokenizerBase, row: dict[str, Any] | None) -> PreTrainedModel:
    """Return the untrained model of a row."""
    config = AutoConfig.for_model(
        setup.architecture,
        vocab_size=len(tokenizer),
        hidden_size=setup.hidden_size,
        num_hidden_layers=setup.num_layers,
        num_attention_heads=setup.num_heads,
        intermediate_size=setup.feed_forward_size,
        max_position_embeddings=setup.block_size,
        hidden_dropout_prob=setup.dropout,
        attention_probs_dropout_prob=setup.dropout,
        pad_token_id=tokenizer.pad_token_id,
    )
    base = AutoModelForMaskedLM.from_config(config)
    return base if row is None else MultiTokenForMaskedLM.from_base(base, **row)


def main() -> None:
    """Train the models with each seed, print the table, and leave each model with its card and its backbone."""
    setup, args = parse_settings(Setup, MultiTokenMaskedTrainingArguments)
    rows = masked_model_rows(setup.rows)
    outputs = ("learning_curves.png", "results.json")
    experiment = Experiment(setup, args, outputs=outputs, models=list(rows), seeds=setup.seeds)
    texts = setup.load()
    tokenizer = train_masking_tokenizer(texts["train"]["text"], setup.vocab_size, setup.block_size)
    if setup.architecture == "crammed_bert":
        tokenizer.model_input_names = ["input_ids", "attention_mask"]  # it has no segments
    corpus = {str(split): enclosed_blocks(text, tokenizer, setup.block_size) for split, text in texts.items()}
    corpus = setup.cut(corpus)
    models = {name: partial(make_model, setup, tokenizer, row) for name, row in rows.items()}
    runs, make = [], partial(MultiTokenMaskedTrainer, processing_class=tokenizer)
    for runs, trainer in train_runs(models, args, corpus, experiment, make_trainer=make, **setup.plan()):
        if not trainer.is_world_process_zero():
            continue
        model: Any = trainer.model
        folder = experiment.folder_of(runs[-1].name, runs[-1].seed)
        for whole, place in ((model, folder), (getattr(model, "backbone", model), folder / BACKBONE)):
            whole.save_pretrained(place)
            tokenizer.save_pretrained(place)
    if args.process_index:
        return
    tables = format_columns(metrics_by_name(runs)), format_differences(runs)
    results = "\n\n".join(filter(None, [describe_comparison(runs), *tables]))
    plot_learning_curves(training_histories(runs), experiment.folder / "learning_curves.png")
    facts = CardFacts(dataset=setup.dataset, results=results, usage=MASKED_USAGE, **setup.stated())
    write_cards(experiment, runs, facts)
    print(f"\n{results}\n\nModels, cards and learning curves: {experiment.folder}")


if __name__ == "__main__":
    main()
