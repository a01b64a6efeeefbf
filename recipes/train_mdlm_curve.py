"""Train masked diffusion models side by side: plain MDLM, and models that predict sentence curves.

On the documentation that ships with Python, offline, in a minute (that it runs, not what it can reach):
    python recipes/train_mdlm_curve.py recipes/settings/train_mdlm_curve/smoke.yaml

As the paper on LM1B, sentences padded and not packed (one 24 GB GPU, 200,000 steps there; its figure 5):
    accelerate launch recipes/train_mdlm_curve.py recipes/settings/train_mdlm_curve/paper.yaml
At a size for two CPU cores, on held-out sentences of LM1B: `.../cpu.yaml`; measured in recipes/README.md.
Sentences are padded: `--length_protocol` says whether a perplexity bounds that of a sentence with its length
(predicted) or given its length (conditional), or is no bound and compares with published figures alone (published).
Fine-tuned from a published model, on any text, packed into blocks:
    --model_name_or_path kuleshov-group/mdlm-owt --original_layout true --tokenizer gpt2 --packed true \
    --dataset my_text.txt --max_length 1024 --output_dir mine --rows '{"mdlm": null, "curve": {"degree_ratio": 0.01}}'
"""

from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from hf_targets.training.runs import Run
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hf_targets import (
    CurveConfig,
    DiffusionTrainer,
    DiffusionTrainingArguments,
    MdlmConfig,
    MdlmForMaskedDiffusion,
    SentenceCurve,
    add_missing_tokens,
    load_corpus,
    sentence_rows,
    train_bpe_tokenizer,
    wrapped_blocks,
)
from hf_targets.figures.learning_curves import plot_learning_curves
from hf_targets.masked_diffusion.length_protocols import LengthProtocol
from hf_targets.masked_diffusion.rows import mask_token_id
from hf_targets.training.comparison import train_rows
from hf_targets.training.seeds import SeedSettings, row_folder
from hf_targets.training.settings import parse, parse_mapping
from hf_targets.training.tables import format_bounds, format_differences, histories


@dataclass
class Setup(SeedSettings):
    """What is trained on what."""

    rows: str = field(
        default='{"mdlm": null, "curve": {}}',
        metadata={"help": "JSON: names of models, and the fields of their CurveConfig; null is plain MDLM."},
    )
    model_name_or_path: str | None = field(default=None, metadata={"help": "Where rows start from; None: anew."})
    original_layout: bool = field(default=False, metadata={"help": "Whether that is laid out as the published MDLM."})
    tokenizer: str | None = field(default=None, metadata={"help": "None: the model's, or one trained on the text."})
    dataset: str = field(default="documentation", metadata={"help": "Corpus, file, folder, or name on the Hub."})
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a data set on the Hub."})
    max_train_words: int | None = field(default=None, metadata={"help": "Train on so many words only."})
    max_validation_rows: int | None = field(default=None, metadata={"help": "Validate on so many rows only."})
    max_test_rows: int | None = field(default=None, metadata={"help": "Test on so many rows only."})
    packed: bool = field(default=False, metadata={"help": "Blocks of running text; else a sentence a row, padded."})
    length_protocol: LengthProtocol = field(default="predicted", metadata={"help": "How padding counts; see above."})
    max_length: int = field(default=128, metadata={"help": "Tokens in a row, at most."})
    vocab_size: int = field(default=4096, metadata={"help": "Of a tokenizer trained on the text, without the mask."})
    hidden_size: int = field(default=128, metadata={"help": "Of new models."})
    num_layers: int = field(default=4, metadata={"help": "Of new models."})
    num_heads: int = field(default=4, metadata={"help": "Attention heads of new models."})
    dropout: float = field(default=0.1, metadata={"help": "Of new models."})
    patience: int | None = field(default=None, metadata={"help": "Evaluations without improvement before stopping."})
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace an older output."})


def make_curves(setup: Setup) -> dict[str, CurveConfig | None]:
    """Return the curve of each row, once it is certain that it can hold the longest text."""
    curves: dict[str, CurveConfig | None] = {}
    known = CurveConfig.__annotations__
    for name, fields in parse_mapping(setup.rows, "rows").items():
        if fields is not None and not isinstance(fields, dict):
            raise ValueError(f"{name} must have the fields of a curve, as a mapping, or null for none, got {fields!r}")
        if unknown := set(fields or {}) - set(known):
            raise ValueError(f"{name} has unknown fields of a curve: {', '.join(unknown)}; known: {', '.join(known)}")
        curves[name] = curve = None if fields is None else CurveConfig(**fields)
        if curve is not None:
            SentenceCurve(curve).to_control_points(torch.zeros(1, setup.max_length, 1))
    return curves


def make_tokenizer(setup: Setup, texts: Any) -> PreTrainedTokenizerBase:
    """Return a tokenizer with a mask token, and one for padding where rows are padded."""
    if named := setup.tokenizer or setup.model_name_or_path:
        return add_missing_tokens(AutoTokenizer.from_pretrained(named), padding=not setup.packed)
    tokenizer = train_bpe_tokenizer(texts["train"]["text"], setup.vocab_size, setup.max_length)
    return add_missing_tokens(tokenizer, padding=not setup.packed)


def make_model(setup: Setup, tokenizer: PreTrainedTokenizerBase, curve: CurveConfig | None) -> MdlmForMaskedDiffusion:
    """Return the model that a row starts from."""
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
    """Train the rows with each seed; leave each model, a table, and a figure of the bounds over training."""
    setup, args = parse(Setup, DiffusionTrainingArguments)
    curves = make_curves(setup)
    run = Run(setup, args, outputs=("learning_curves.png", "results.json"), rows=list(curves), seeds=setup.seeds)
    texts = load_corpus(setup.dataset, config_name=setup.dataset_config, max_train_words=setup.max_train_words)
    tokenizer = make_tokenizer(setup, texts)
    make_rows = wrapped_blocks if setup.packed else partial(sentence_rows, length_protocol=setup.length_protocol)
    corpus = {str(split): make_rows(text, tokenizer, setup.max_length) for split, text in texts.items()}
    for split, most in (("validation", setup.max_validation_rows), ("test", setup.max_test_rows)):
        corpus[split] = corpus[split] if most is None else corpus[split].take(min(most, len(corpus[split])))

    models = {name: partial(make_model, setup, tokenizer, curve) for name, curve in curves.items()}
    settings = {"seeds": setup.seeds, "patience": setup.patience, "settings": asdict(setup)}
    make_trainer = partial(DiffusionTrainer, processing_class=tokenizer)
    for rows, trainer in train_rows(models, args, corpus, run, make_trainer=make_trainer, **settings):
        if not trainer.is_world_process_zero():
            continue
        name, seed = rows[-1].name, rows[-1].seed
        trainer.save_model(str(run.folder / row_folder(name, seed)))  # of the lowest validation bound
        plot_learning_curves(histories(rows), run.folder / "learning_curves.png")
        model: Any = trainer.model
        generator = torch.Generator().manual_seed(seed)
        canvas = model.generate(max_length=setup.max_length, num_steps=min(32, setup.max_length), generator=generator)
        sample = [id_ for id_ in canvas[0].tolist() if id_ != tokenizer.pad_token_id]
        bounds = format_bounds(rows, "packed" if setup.packed else f"lengths {setup.length_protocol}")
        print(f"\n{bounds}\n\n{format_differences(rows)}\n")
        print(f"Sample of {name}: {tokenizer.decode(sample)!r}\n", flush=True)


if __name__ == "__main__":
    main()
