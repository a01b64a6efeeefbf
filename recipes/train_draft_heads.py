"""Train draft heads on any frozen causal language model in minutes, and print how much faster it decodes with them.

On the model that `make run` leaves, offline (a quick check that it runs):
    python recipes/train_draft_heads.py recipes/settings/train_draft_heads/smoke.yaml

On a model of the Hub or of your own, with the text it was trained on, or with text it writes itself (the default):
    python recipes/train_draft_heads.py recipes/settings/train_draft_heads/paper.yaml --dataset my_text.txt.gz

The heads end in a folder of their own, a few MB that name their base model. Several kinds and seeds side by side:
recipes/tables/train_draft_heads.py. Measured: recipes/multitoken.md.
"""

import lab.start  # noqa: F401

from dataclasses import dataclass, field, replace
from typing import Any

from transformers import AutoTokenizer, set_seed

from hf_targets import MultiTokenForCausalLM, MultiTokenTrainer, MultiTokenTrainingArguments
from hf_targets.multitoken.frozen_base import StoredStates
from lab.card import finish
from lab.draft_heads import KINDS, DraftText, load_base, settings_of
from lab.runs import run_alone
from lab.speed import DecodingMethod, compare_speeds

USAGE = """inputs = tokenizer("The", return_tensors="pt")
drafts = {"draft_tokens": model.config.ngram_size - 1}
print(tokenizer.decode(model.generate(**inputs, **drafts, max_new_tokens=8, do_sample=False)[0]))"""


@dataclass(kw_only=True)
class Setup(DraftText):
    """Which heads on which model, trained on what."""

    model_name_or_path: str = field(metadata={"help": "The model that is to decode faster: a folder, or a Hub id."})
    kind: str = field(default="wdr", metadata={"help": f"One of {', '.join(KINDS)}, or a registered head."})
    ngram_size: int = field(default=4, metadata={"help": "N: the heads draft N - 1 tokens."})
    draft_vocab_size: int | None = field(
        default=None, metadata={"help": "Draft only so many tokens, those most frequent in the text; None: any token."}
    )
    store_states: bool = field(
        default=True,
        metadata={"help": "Keep the model's hidden states on disk, and read them instead of running the model."},
    )
    max_new_tokens: int = field(default=96, metadata={"help": "Tokens to generate for each prompt."})
    branches: int = field(default=3, metadata={"help": "Branches of the draft trees that are measured too."})

    def __post_init__(self) -> None:
        settings_of(self.kind)


SETTINGS = (Setup, MultiTokenTrainingArguments)


def main(setup: Setup, args: MultiTokenTrainingArguments) -> dict[str, float]:
    """Train heads, save them with their card, and measure how fast they decode, one text and all texts at once."""
    base = load_base(setup.model_name_or_path, setup.dtype).to(args.device)  # pyright: ignore[reportArgumentType]
    tokenizer = AutoTokenizer.from_pretrained(setup.model_name_or_path)
    with args.main_process_first():
        train = setup.rows(base, tokenizer)
        stored = StoredStates(base, train, setup.cache_dir) if setup.store_states else train
    heads = {**settings_of(setup.kind), "ngram_size": setup.ngram_size, "draft_vocab_size": setup.draft_vocab_size}
    set_seed(args.seed)
    model = MultiTokenForCausalLM.from_base(base, loss_weight=1.0, **heads)
    model.backbone.requires_grad_(False)
    if model.heads.draft_vocabulary is not None:
        model.heads.draft_vocabulary.choose(train["input_ids"])
    if base.dtype != model.heads.float().layers[0].last_layer.weight.dtype:  # pyright: ignore
        # heads in float32 learn from steps that are lost in bfloat16
        args = replace(args, bf16=True, use_cpu=args.device.type == "cpu")
    trainer = MultiTokenTrainer(model=model, args=args, train_dataset=stored)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    if args.process_index:
        return {}
    folder: Any = args.output_dir
    model.heads.to(base.dtype)
    model.save_pretrained(folder, heads_only=True)
    model = MultiTokenForCausalLM.from_pretrained(folder, dtype=base.dtype).eval()  # without Trainer's autocast
    model.to(args.device)  # pyright: ignore[reportArgumentType]

    chain = {"draft_tokens": setup.ngram_size - 1}
    methods = {
        "plain": DecodingMethod(model.backbone, {}),
        "chain": DecodingMethod(model, chain),
        "tree": DecodingMethod(model, {**chain, "draft_branches": setup.branches}),
        "auto": DecodingMethod(model, {"draft_tokens": "auto"}),
    }
    results: dict[str, float] = {}
    for size in (1, setup.num_prompts):
        prompts = setup.test_batches(base, tokenizer, size)
        plain, *drafted = compare_speeds(methods, prompts, max_new_tokens=setup.max_new_tokens)
        for speed in drafted:
            results[f"{speed.name}_x_plain_{size}"] = speed.tokens_per_second / plain.tokens_per_second
            results[f"{speed.name}_tokens_per_pass_{size}"] = speed.tokens_per_pass
            results["same_text"] = min(results.get("same_text", 1.0), speed.same)
    told, dataset = "\n".join(f"{name}: {value:.2f}" for name, value in results.items()), setup.dataset
    card = {"base_model": setup.model_name_or_path, "auto_class": "MultiTokenForCausalLM", "usage": USAGE}
    card["dataset"] = "text that the base model wrote itself" if dataset is None else dataset
    finish(trainer, tokenizer, results, told, **card)
    return results


if __name__ == "__main__":
    run_alone(main, *SETTINGS, description=__doc__)
