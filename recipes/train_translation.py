"""Train translation models: plain, bags of words, the simple N-gram and word differences, with and without ensemble.

Table 4 of the paper on Multi30k, at a size for two CPU cores (settings for IWSLT14, WMT14 and WMT18 are beside it):

    HF_TARGETS_DATA=data accelerate launch recipes/train_translation.py recipes/settings/train_translation/multi30k.yaml

In a minute, without data: `.../smoke.yaml`. Any model of the Hub: --model_name_or_path. Notes: recipes/multitoken.md.
"""

from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from transformers import AutoModelForSeq2SeqLM, MarianConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_targets import (
    CardFacts,
    ComparisonSettings,
    EncodedPairSettings,
    Experiment,
    ModelSizeSettings,
    MultiTokenSeq2SeqTrainingArguments,
    TranslationRow,
    count_ngrams,
    describe_comparison,
    field_of,
    format_column_differences,
    format_columns,
    format_perplexities,
    parse_settings,
    score_texts,
    train_runs,
    translate,
    translation_rows,
    write_cards,
    write_json,
)


@dataclass
class Setup(ComparisonSettings, EncodedPairSettings, ModelSizeSettings):
    """The models of table 6 and the rows of table 4."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Encoder-decoder model to begin with. None: a new one of the sizes below."}
    )
    hidden_size: int = field_of(ModelSizeSettings, "hidden_size", 256)
    feed_forward_size: int = field(default=1024, metadata={"help": "Width of the feed-forward layers, d_ff."})
    num_layers: int = field_of(ModelSizeSettings, "num_layers", 3, note="Of the encoder, and of the decoder.")
    dropout: float = field_of(ModelSizeSettings, "dropout", 0.3)
    max_positions: int = field(default=256, metadata={"help": "Positions of a new model, on either side."})
    attention: str = field(default="sdpa", metadata={"help": "sdpa, or eager: faster on a CPU for short texts."})
    rows: str = field(
        default='{"plain": {}, "bag-of-words": {"bag_of_words": {}}, "simple": {"target": "embedding", "ngram_size": '
        '3}, "wdr": {"target": "difference", "ngram_size": 3}}',
        metadata={"help": "JSON: names of models, and nothing, bag_of_words with its settings, or fields of heads."},
    )
    loss_weight: float = field(default=1.0, metadata={"help": "Alpha of the rows that do not name it; 1 in table 8."})
    num_beams: int = field(default=5, metadata={"help": "Beams of the translations that are scored."})
    tokenized: bool = field(
        default=False, metadata={"help": "Whether the text is cut into words already: BLEU is then bleu_tokenized."}
    )
    average_checkpoints: int = field(
        default=1, metadata={"help": "Score the mean of so many best checkpoints; save_total_limit must keep them."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        ModelSizeSettings.__post_init__(self)
        translation_rows(self.rows)
        for name in ("num_beams", "average_checkpoints", "max_positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.model_name_or_path is None:
            self.max_source_length = min(self.max_source_length or self.max_positions, self.max_positions)
            self.max_target_length = min(self.max_target_length or self.max_positions, self.max_positions)


def make_model(setup: Setup, tokenizer: PreTrainedTokenizerBase, row: TranslationRow) -> PreTrainedModel:
    """Return the model of a row: plain, or with heads."""
    if setup.model_name_or_path is not None:
        model = AutoModelForSeq2SeqLM.from_pretrained(setup.model_name_or_path, attn_implementation=setup.attention)
    else:
        size: dict[str, Any] = {"d_model": setup.hidden_size, "max_position_embeddings": setup.max_positions}
        for part in ("encoder", "decoder"):
            size |= {f"{part}_layers": setup.num_layers, f"{part}_attention_heads": setup.num_heads}
            size |= {f"{part}_ffn_dim": setup.feed_forward_size}
        ids: dict[str, Any] = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
        ids |= {"decoder_start_token_id": tokenizer.pad_token_id, "forced_eos_token_id": None, "bos_token_id": None}
        rest: dict[str, Any] = {"vocab_size": len(tokenizer), "scale_embedding": True, "activation_function": "relu"}
        config = MarianConfig(**size, **ids, **rest, dropout=setup.dropout)
        model = AutoModelForSeq2SeqLM.from_config(config, attn_implementation=setup.attention)
    return row.model_of(model, loss_weight=setup.loss_weight)


def scored(
    setup: Setup, model: Any, weight: float | None, corpus: Any, texts: Any, tokenizer: PreTrainedTokenizerBase
) -> dict[str, float]:
    """Return the scores of a model's translations of the test text, with an ensemble if there is a weight."""
    settings: Any = {} if weight is None else {"ensemble_weight": weight}
    found = translate(model, corpus["test"], tokenizer, num_beams=setup.num_beams, **settings)
    return score_texts(found, texts["test"], tokenized=setup.tokenized)


def main() -> None:
    """Train the models with each seed, translate the test text, and leave each model with its tokenizer and card."""
    setup, args = parse_settings(Setup, MultiTokenSeq2SeqTrainingArguments)
    args.tokens_per_batch = args.tokens_per_batch or setup.batch_tokens
    rows, outputs = translation_rows(setup.rows), ("results.json", "scores.json")
    experiment = Experiment(setup, args, outputs=outputs, models=list(rows), seeds=setup.seeds)
    texts = setup.load()
    tokenizer = setup.tokenizer_of(setup.model_name_or_path, texts)
    corpus = setup.encoded(texts, tokenizer)
    setup.batches(corpus["train"], shuffle=False, seed=0)  # raises if a pair is longer than a batch
    for side, column in (("source", "input_ids"), ("target", "labels")):
        counts = [count_ngrams(corpus["train"][column], order) for order in (1, 2)]
        print(f"{side}: {counts[0]:,} distinct tokens, {counts[1]:,} distinct bigrams", flush=True)
    models = {name: partial(make_model, setup, tokenizer, row) for name, row in rows.items()}
    trainers = {name: row.trainer_of(tokenizer) for name, row in rows.items()}
    runs, scores = [], {}
    plan = {**setup.plan(), "average_checkpoints": setup.average_checkpoints}
    for runs, trainer in train_runs(models, args, corpus, experiment, make_trainer=trainers, **plan):
        if not trainer.is_world_process_zero():
            continue
        run, model, folder = runs[-1], trainer.model, experiment.folder_of(runs[-1].name, runs[-1].seed)
        ways = {run.name: 0.0 if rows[run.name].heads else None}
        ways |= {f"{run.name}, ensemble": run.ensemble_weight} if run.ensemble_weight else {}
        for way, weight in ways.items():
            scores.setdefault(way, []).append(scored(setup, model, weight, corpus, texts, tokenizer))
            print(f"{way}, seed {run.seed}: {scores[way][-1]}", flush=True)
        write_json(experiment.folder / "scores.json", {"settings": asdict(setup), "scores": scores})
        model.save_pretrained(folder)  # pyright: ignore
        tokenizer.save_pretrained(folder)
    if args.process_index:
        return
    tables = format_columns(scores), format_column_differences(scores), format_perplexities(runs)
    results = "\n\n".join(filter(None, [describe_comparison(runs, averaged=setup.average_checkpoints), *tables]))
    write_cards(experiment, runs, CardFacts(dataset=setup.dataset, results=results, **setup.stated()))
    print(f"\n{results}\n\nModels and cards: {experiment.folder}")


if __name__ == "__main__":
    main()
