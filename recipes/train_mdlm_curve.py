"""Train masked diffusion models side by side: plain MDLM, and models that predict sentence curves.

On the documentation that ships with Python, offline, in a minute (a quick check that it runs):
    python recipes/train_mdlm_curve.py recipes/settings/train_mdlm_curve/smoke.yaml

As the paper on LM1B, sentences padded and not packed (one 24 GB GPU, 200,000 steps there; its figure 5):
    accelerate launch recipes/train_mdlm_curve.py recipes/settings/train_mdlm_curve/paper.yaml
At a size for two CPU cores, on held-out sentences of LM1B: `.../cpu.yaml`; measured in recipes/masked_diffusion.md.
Sentences are padded: `--length_protocol` says whether a perplexity bounds that of a sentence with its length
(predicted) or given its length (conditional), or is no bound and compares with published figures alone (published).
Fine-tuned from a published model, on any text, packed into blocks:
    --model_name_or_path kuleshov-group/mdlm-owt --original_layout true --tokenizer gpt2 --packed true \
    --dataset my_text.txt --max_length 1024 --output_dir mine --rows '{"mdlm": null, "curve": {"degree_ratio": 0.01}}'
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hf_targets import (
    DIFFUSION_METRICS,
    DIFFUSION_USAGE,
    CardFacts,
    ComparisonSettings,
    CurveConfig,
    DiffusionTrainer,
    DiffusionTrainingArguments,
    Experiment,
    LengthProtocol,
    MdlmConfig,
    MdlmForMaskedDiffusion,
    NewModelSettings,
    SamplerSettings,
    TextSettings,
    add_missing_tokens,
    curve_rows,
    describe_comparison,
    format_bounds,
    format_differences,
    mask_token_id,
    parse_settings,
    plot_learning_curves,
    sentence_rows,
    train_bpe_tokenizer,
    train_runs,
    training_histories,
    wrapped_blocks,
    write_cards,
)


@dataclass
class Setup(ComparisonSettings, TextSettings, NewModelSettings, SamplerSettings):
    """What is trained on what."""

    rows: str = field(
        default='{"mdlm": null, "curve": {}}',
        metadata={"help": "JSON: names of models, and the fields of their CurveConfig; null is plain MDLM."},
    )
    model_name_or_path: str | None = field(default=None, metadata={"help": "Where models start from. None: anew."})
    original_layout: bool = field(
        default=False, metadata={"help": "Whether the model is in the published layout of MDLM."}
    )
    tokenizer: str | None = field(default=None, metadata={"help": "None: the model's, or one trained on the text."})
    max_validation_rows: int | None = field(default=None, metadata={"help": "Validate on so many rows only."})
    max_test_rows: int | None = field(default=None, metadata={"help": "Test on so many rows only."})
    packed: bool = field(default=False, metadata={"help": "Blocks of running text; else a sentence a row, padded."})
    length_protocol: LengthProtocol = field(
        default="predicted",
        metadata={"help": "predicted: pads are text; conditional: the length is known; published: pads cost nothing."},
    )
    max_length: int = field(default=128, metadata={"help": "Tokens in a row, at most."})

    def __post_init__(self) -> None:
        super().__post_init__()
        NewModelSettings.__post_init__(self)
        self.make_sampler(self.max_length)


def make_tokenizer(setup: Setup, texts: Any) -> PreTrainedTokenizerBase:
    """Return a tokenizer with a mask token, and one for padding where rows are padded."""
    if named := setup.tokenizer or setup.model_name_or_path:
        return add_missing_tokens(AutoTokenizer.from_pretrained(named), padding=not setup.packed)
    tokenizer = train_bpe_tokenizer(texts["train"]["text"], setup.vocab_size, setup.max_length)
    return add_missing_tokens(tokenizer, padding=not setup.packed)


def make_model(setup: Setup, tokenizer: PreTrainedTokenizerBase, curve: CurveConfig | None) -> MdlmForMaskedDiffusion:
    """Return the model that training starts from."""
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    ids["mask_token_id"] = mask_token_id(tokenizer)
    if setup.model_name_or_path is not None and setup.original_layout:
        return MdlmForMaskedDiffusion.from_published(setup.model_name_or_path, **ids).with_curve(curve)
    if setup.model_name_or_path is not None:
        return MdlmForMaskedDiffusion.from_pretrained(setup.model_name_or_path).with_curve(curve)
    config = MdlmConfig(
        **ids,
        vocab_size=len(tokenizer),
        max_position_embeddings=setup.max_length,
        hidden_size=setup.hidden_size,
        num_hidden_layers=setup.num_layers,
        num_attention_heads=setup.num_heads,
        dropout=setup.dropout,
        curve=curve,
    )
    return MdlmForMaskedDiffusion(config)


def main() -> None:
    """Train the models with each seed; leave each with its card, a table, and a figure of the bounds over training."""
    setup, args = parse_settings(Setup, DiffusionTrainingArguments)
    curves = curve_rows(setup.rows, setup.max_length)
    outputs = ("learning_curves.png", "results.json")
    experiment = Experiment(setup, args, outputs=outputs, models=list(curves), seeds=setup.seeds)
    texts = setup.load()
    tokenizer = make_tokenizer(setup, texts)
    make_rows = wrapped_blocks if setup.packed else partial(sentence_rows, length_protocol=setup.length_protocol)
    corpus = {str(split): make_rows(text, tokenizer, setup.max_length) for split, text in texts.items()}
    for split, most in (("validation", setup.max_validation_rows), ("test", setup.max_test_rows)):
        corpus[split] = corpus[split] if most is None else corpus[split].take(min(most, len(corpus[split])))

    models = {name: partial(make_model, setup, tokenizer, curve) for name, curve in curves.items()}
    make_trainer = partial(DiffusionTrainer, processing_class=tokenizer)
    runs, samples = [], []
    for runs, trainer in train_runs(models, args, corpus, experiment, make_trainer=make_trainer, **setup.plan()):
        if trainer.is_world_process_zero():
            name, seed = runs[-1].name, runs[-1].seed
            trainer.save_model(str(experiment.folder_of(name, seed)))  # of the lowest validation bound
            samples.append(f"Sample of {name}: {setup.sample(trainer.model, tokenizer, setup.max_length, seed)!r}")
    if args.process_index:
        return
    bounds = format_bounds(runs, "packed" if setup.packed else f"lengths {setup.length_protocol}")
    tables = f"{bounds}\n\n{format_differences(runs)}"
    plot_learning_curves(training_histories(runs), experiment.folder / "learning_curves.png")
    facts = CardFacts(
        dataset=setup.dataset,
        results=f"{describe_comparison(runs)}\n\n{tables}",
        usage=DIFFUSION_USAGE,
        base_model=setup.model_name_or_path,
        **setup.stated(),
        metrics=DIFFUSION_METRICS if setup.packed or setup.length_protocol != "published" else None,
    )
    write_cards(experiment, runs, facts)
    print("\n".join([f"\n{tables}\n", *samples, f"\nModels, cards and learning curves: {experiment.folder}"]))


if __name__ == "__main__":
    main()
