"""Train a masked diffusion language model (MDLM), plain or with a sentence curve.

A small one on the documentation that ships with Python, offline, in a minute on two CPU cores:
    python recipes/train_mdlm_curve.py recipes/settings/train_mdlm_curve/smoke.yaml

As the paper on LM1B, sentences padded and not packed (one 24 GB GPU, 200,000 steps): `.../paper.yaml`.
`--length_protocol` says whether the perplexity bounds that of a sentence with its length (predicted) or given its
length (conditional), or is no bound and compares with published figures alone (published).
Fine-tuned from a published model, on any text, packed into blocks:
    --model_name_or_path kuleshov-group/mdlm-owt --original_layout true --tokenizer gpt2 --packed true \
    --dataset my_text.txt --max_length 1024 --output_dir mine --curve '{"degree_ratio": 0.01}'
From a causal model, whose weights it keeps (`.../smollm2.yaml`; `--fresh true` draws them anew, for comparison):
    --from_causal HuggingFaceTB/SmolLM2-135M-Instruct --mask_token "<reponame>" --packed true
Plain and curves side by side, with several seeds: recipes/tables/train_mdlm_curve.py.
"""

import lab.start  # noqa: F401

from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase, set_seed

from hf_targets import (
    DiffusionTrainer,
    DiffusionTrainingArguments,
    MdlmConfig,
    MdlmForMaskedDiffusion,
    sentence_rows,
    train_bpe_tokenizer,
    wrapped_blocks,
)
from hf_targets.masked_diffusion.rows import LengthProtocol, add_missing_tokens
from hf_targets.masked_diffusion.sampling import make_sampler
from lab.card import finish, quoted
from lab.results import measure, timed_training
from lab.runs import run_alone
from lab.text import TextSettings

USAGE = "print(tokenizer.decode(model.generate(max_length={}, num_steps=8)[0], skip_special_tokens=True))"


@dataclass
class Setup(TextSettings):
    """Which model is trained on what."""

    model_name_or_path: str | None = field(default=None, metadata={"help": "Where training starts. None: anew."})
    original_layout: bool = field(default=False, metadata={"help": "Whether that model is in the published layout."})
    from_causal: str | None = field(default=None, metadata={"help": "The causal model to begin with, or None."})
    fresh: bool = field(default=False, metadata={"help": "Whether the causal model begins with random weights."})
    mask_token: str | None = field(
        default=None, metadata={"help": "A token that no text has. None: the tokenizer's, or one that is added."}
    )
    config: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "Fields of a new model's MdlmConfig, or arguments of from_causal."}
    )
    curve: dict[str, Any] | None = field(
        default=None, metadata={"help": "Fields of the CurveConfig. None: that of the model, a new one has none."}
    )
    tokenizer: str | None = field(default=None, metadata={"help": "None: the model's, or one trained on the text."})
    vocab_size: int = field(default=4096, metadata={"help": "Tokens of a tokenizer that is trained on the text."})
    max_validation_rows: int | None = field(default=None, metadata={"help": "Validate on so many rows only."})
    max_test_rows: int | None = field(default=None, metadata={"help": "Test on so many rows only."})
    packed: bool = field(default=False, metadata={"help": "Blocks of running text; else a sentence a row, padded."})
    length_protocol: LengthProtocol = field(
        default="predicted",
        metadata={"help": "predicted: pads are text; conditional: the length is known; published: pads cost nothing."},
    )
    max_length: int = field(default=128, metadata={"help": "Tokens in a row, at most."})
    sample: dict[str, Any] = field(
        default_factory=lambda: {"num_steps": 32}, metadata={"help": "Arguments of generate, for the sample."}
    )

    def __post_init__(self) -> None:
        if unknown := self.sample.keys() - signature(MdlmForMaskedDiffusion.generate).parameters.keys():
            raise ValueError(f"sample has arguments of generate, such as num_steps, got {', '.join(sorted(unknown))}")
        options = {name: self.sample.get(name) for name in ("num_steps", "tokens_per_step", "entropy_bound")}
        make_sampler(self.sample.get("sampler", "cached"), **options)  # raises an error before the training

    def rows(self, texts: Any, tokenizer: PreTrainedTokenizerBase) -> dict[str, Dataset]:
        """Return the splits as rows of tokens, no more of them than asked for."""
        most, corpus = {"validation": self.max_validation_rows, "test": self.max_test_rows}, {}
        for split, text in texts.items():
            if self.packed:
                corpus[split] = wrapped_blocks(text, tokenizer, self.max_length)
            else:
                corpus[split] = sentence_rows(text, tokenizer, self.max_length, self.length_protocol)
            if (count := most.get(split)) is not None:
                corpus[split] = corpus[split].take(min(count, len(corpus[split])))
        return corpus

    def adapted(self, causal: str, tokenizer: PreTrainedTokenizerBase) -> MdlmForMaskedDiffusion:
        """Return the causal model as a diffusion model, with rows for tokens that were added."""
        base = AutoModelForCausalLM.from_pretrained(causal, dtype="float32")  # for training
        base = AutoModelForCausalLM.from_config(base.config) if self.fresh else base
        if len(tokenizer) > base.config.vocab_size:
            base.resize_token_embeddings(len(tokenizer))
        given = {"mask_token_id": tokenizer.mask_token_id, "curve": self.curve, **self.config}
        return MdlmForMaskedDiffusion.from_causal(base, **given)


SETTINGS = (Setup, DiffusionTrainingArguments)


def main(setup: Setup, args: DiffusionTrainingArguments) -> dict[str, float]:
    """Train one model, save it with its card, and measure the bound on its perplexity."""
    texts = setup.load()
    if named := setup.tokenizer or setup.model_name_or_path or setup.from_causal:
        given = {} if setup.mask_token is None else {"mask_token": setup.mask_token}
        tokenizer = AutoTokenizer.from_pretrained(named, **given)
    else:
        tokenizer = train_bpe_tokenizer(texts["train"]["text"], setup.vocab_size, setup.max_length)
    tokenizer = add_missing_tokens(tokenizer, padding=not setup.packed)
    corpus = setup.rows(texts, tokenizer)
    set_seed(args.seed)
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id", "mask_token_id")}
    if setup.from_causal is not None:
        model = setup.adapted(setup.from_causal, tokenizer)
    elif setup.model_name_or_path is None:
        sizes = {"max_position_embeddings": setup.max_length, "vocab_size": len(tokenizer), **setup.config}
        model = MdlmForMaskedDiffusion(MdlmConfig(**ids, **sizes, curve=setup.curve))
    else:
        name, mdlm = setup.model_name_or_path, MdlmForMaskedDiffusion
        model = (
            mdlm.from_published(name, **ids) if setup.original_layout else mdlm.from_pretrained(name, dtype="float32")
        )
        model = model if setup.curve is None else model.with_curve(setup.curve)
    data = {"train_dataset": corpus["train"], "eval_dataset": corpus["validation"]}
    trainer = DiffusionTrainer(model, args, processing_class=tokenizer, **data)
    seconds = timed_training(trainer)
    results = {**measure(trainer, corpus["test"]), "seconds": seconds}
    trainer.save_state()
    trainer.save_model(_internal_call=True)  # which does not upload it yet
    generator = torch.Generator().manual_seed(args.seed)
    text = model.generate(**{"max_length": setup.max_length, "generator": generator, **setup.sample})
    if not trainer.is_world_process_zero():  # the sample takes all processes where they share the weights
        return results
    sample = str(tokenizer.decode([token for token in text[0].tolist() if token != tokenizer.pad_token_id]))
    card: dict[str, Any] = {"dataset": setup.dataset, "base_model": setup.from_causal or setup.model_name_or_path}
    card["text"] = f"The perplexity is an upper bound. A sample: {quoted(sample)}"
    card |= {"auto_class": "AutoModelForMaskedLM", "usage": USAGE.format(setup.max_length)}
    finish(trainer, tokenizer, results, f"Perplexity at most {results['perplexity']:.2f}. Sample: {sample!r}", **card)
    return results


if __name__ == "__main__":
    run_alone(main, *SETTINGS, description=__doc__)
