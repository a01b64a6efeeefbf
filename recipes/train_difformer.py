"""Train Gaussian diffusion models that translate, paraphrase or simplify: Difformer and DINOISER, with curves or not.

Table 1 of the sentence curve paper on Multi30k, at a size for two CPU cores, and with `.../smoke.yaml` in a minute,
without data. Notes, and what is measured so far: recipes/gaussian_diffusion.md.

    HF_TARGETS_DATA=data accelerate launch recipes/train_difformer.py recipes/settings/train_difformer/multi30k.yaml
"""

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_targets import (
    SCORE_METRICS,
    CardFacts,
    ComparisonSettings,
    DifformerConfig,
    DifformerForConditionalGeneration,
    EncodedPairSettings,
    Experiment,
    GaussianDiffusionTrainer,
    GaussianDiffusionTrainingArguments,
    ModelSizeSettings,
    describe_comparison,
    diffusion_rows,
    field_of,
    format_column_differences,
    format_columns,
    generated_texts,
    pair_usage,
    parse_settings,
    score_texts,
    train_runs,
    write_cards,
    write_json,
)


@dataclass
class Setup(ComparisonSettings, EncodedPairSettings, ModelSizeSettings):
    """The models of table 2 and the rows of table 1."""

    hidden_size: int = field_of(ModelSizeSettings, "hidden_size", 512)
    feed_forward_size: int = field(default=1024, metadata={"help": "Width of the feed-forward layers, d_ff."})
    num_layers: int = field_of(ModelSizeSettings, "num_layers", 6, note="Of the encoder, and of the decoder.")
    dropout: float | None = field_of(ModelSizeSettings, "dropout", None, note="None: by a row's preset.")
    max_positions: int = field(default=256, metadata={"help": "Longest source, and longest text, in tokens."})
    rows: str = field(
        default='{"difformer": {}, "wdr": {"multitoken": {}}, "curves": {"curve": {}}}',
        metadata={"help": "JSON: names of models, and fields of their DifformerConfig."},
    )
    num_reverse_steps: int = field(default=20, metadata={"help": "Steps from noise to text."})
    num_lengths: int = field(default=5, metadata={"help": "Lengths that are tried for each text."})
    num_noises: int = field(default=2, metadata={"help": "Texts of each length that minimum Bayes risk chooses among."})
    ensemble_weight: float = field(default=0.1, metadata={"help": "Lambda of the rows with heads, beside 0."})
    translation_tokens: int = field(default=2048, metadata={"help": "Tokens of sources at once, times the candidates."})
    tokenized: bool = field(
        default=False, metadata={"help": "Whether the text is cut into words already: BLEU is then bleu_tokenized."}
    )
    average_checkpoints: int = field(default=1, metadata={"help": "Score the mean of so many, the best that are kept."})

    def __post_init__(self) -> None:
        super().__post_init__()
        ModelSizeSettings.__post_init__(self)
        diffusion_rows(self.rows, self.num_reverse_steps, **self.common())
        for name in ("num_lengths", "num_noises", "max_positions", "average_checkpoints"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if not 0 <= self.ensemble_weight <= 1:
            raise ValueError(f"ensemble_weight (lambda) must be in [0, 1], got {self.ensemble_weight}")
        for name in ("max_source_length", "max_target_length"):
            setattr(self, name, min(getattr(self, name) or self.max_positions, self.max_positions))

    def common(self) -> dict[str, Any]:
        """Return the fields that all rows have unless they say otherwise."""
        return {
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "intermediate_size": self.feed_forward_size,
            "max_position_embeddings": self.max_positions,
            "dropout": self.dropout,
        }


def make_model(setup: Setup, tokenizer: PreTrainedTokenizerBase, row: dict[str, Any]) -> PreTrainedModel:
    """Return the new model of a row, whose decoding is that of the settings."""
    ids: dict[str, Any] = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id", "bos_token_id")}
    model = DifformerForConditionalGeneration(DifformerConfig(vocab_size=len(tokenizer), **ids, **row))
    for name in ("num_reverse_steps", "num_lengths", "num_noises"):
        setattr(model.generation_config, name, getattr(setup, name))
    return model


def scored(
    setup: Setup, model: Any, corpus: Any, texts: Any, tokenizer: PreTrainedTokenizerBase, **settings: Any
) -> dict[str, float]:
    """Return the scores of a model's texts for the sources of the test split."""
    room = setup.translation_tokens // (setup.num_lengths * setup.num_noises)
    write = partial(model.generate, tokenizer=tokenizer, **settings)
    found = generated_texts(model, lambda batch: write(**batch), corpus["test"], tokenizer, batch_tokens=room)
    return score_texts(found, texts["test"], tokenized=setup.tokenized)


def main() -> None:
    """Train the models with each seed, write texts for the test split, and leave each model with its card."""
    setup, args = parse_settings(Setup, GaussianDiffusionTrainingArguments)
    args.tokens_per_batch = args.tokens_per_batch or setup.batch_tokens
    rows, outputs = diffusion_rows(setup.rows, **setup.common()), ("results.json", "scores.json")
    experiment = Experiment(setup, args, outputs=outputs, models=list(rows), seeds=setup.seeds)
    texts = setup.load()
    tokenizer = setup.tokenizer_of(None, texts)
    corpus = setup.encoded(texts, tokenizer)
    setup.batches(corpus["train"], shuffle=False, seed=0)  # raises if a pair is longer than a batch
    models = {name: partial(make_model, setup, tokenizer, row) for name, row in rows.items()}
    make_trainer: Any = partial(GaussianDiffusionTrainer, processing_class=tokenizer)
    runs, scores = [], {}
    plan = {**setup.plan(), "average_checkpoints": setup.average_checkpoints}
    for runs, trainer in train_runs(models, args, corpus, experiment, make_trainer=make_trainer, **plan):
        if not trainer.is_world_process_zero():
            continue
        run, model, folder = runs[-1], trainer.model, experiment.folder_of(runs[-1].name, runs[-1].seed)
        ways = {run.name: 0.0}
        if model.config.multitoken:  # pyright: ignore
            ways[f"{run.name}, ensemble"] = setup.ensemble_weight
        for way, weight in ways.items():
            chosen = {"ensemble_weight": weight, "generator": torch.Generator().manual_seed(run.seed)}
            scores.setdefault(way, []).append(scored(setup, model, corpus, texts, tokenizer, **chosen))
            print(f"{way}, seed {run.seed}: {scores[way][-1]}", flush=True)
        write_json(experiment.folder / "scores.json", {"settings": asdict(setup), "scores": scores})
        model.save_pretrained(folder)  # pyright: ignore
        tokenizer.save_pretrained(folder)
    if args.process_index:
        return
    tables = format_columns(scores), format_column_differences(scores)
    results = "\n\n".join(filter(None, [describe_comparison(runs, averaged=setup.average_checkpoints), *tables]))
    of_texts = [replace(run, test=scores[run.name][setup.seeds.index(run.seed)]) for run in runs]
    usage = pair_usage(setup.source_lang, setup.target_lang)
    stated: Any = {"dataset": setup.dataset, "results": results, **setup.stated()}
    write_cards(experiment, of_texts, CardFacts(usage=usage, metrics=SCORE_METRICS, **stated))
    print(f"\n{results}\n\nModels and cards: {experiment.folder}")


if __name__ == "__main__":
    main()
