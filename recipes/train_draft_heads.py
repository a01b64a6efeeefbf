"""Train draft heads on any frozen causal language model in minutes, and print how much faster it decodes with them.

On the model that `make run` leaves, offline (that it runs, not what it can reach):
    python recipes/train_draft_heads.py recipes/settings/train_draft_heads/smoke.yaml

On a model of the Hub or of your own, with the text it was trained on, or with text it writes itself (the default):
    python recipes/train_draft_heads.py recipes/settings/train_draft_heads/paper.yaml --dataset my_text.txt.gz
On stories260K, from the files that llama2.c publishes; 2.5 to 5 minutes for each of four kinds on one busy core:
    python -m hf_targets.backbones.llama2c stories260K.bin tok512.bin stories260K
    python recipes/train_draft_heads.py recipes/settings/train_draft_heads/stories.yaml

The heads of each kind and seed end in a folder of their own, a few MB that name their base model. Measured:
recipes/README.md.
"""

from dataclasses import dataclass, field
from itertools import product

import torch
from hf_targets.training.runs import Run
from transformers import AutoTokenizer

from hf_targets import MultiTokenTrainingArguments, train_draft_heads
from hf_targets.evaluation.speed import Way, compare_speeds, format_speeds
from hf_targets.multitoken.draft_heads import KINDS, draft_text, load_base, settings_of
from hf_targets.training.outputs import TOKENIZER_OUTPUT, TRAINER_OUTPUT
from hf_targets.training.seeds import SeedSettings, row_folder
from hf_targets.training.settings import parse


@dataclass(kw_only=True)
class Setup(SeedSettings):
    """Which heads on which model, trained on what."""

    model_name_or_path: str = field(metadata={"help": "The model that is to decode faster: a folder, or a Hub id."})
    kinds: list[str] = field(
        default_factory=lambda: ["wdr"], metadata={"help": f"Of {', '.join(KINDS)}, or a registered head."}
    )
    ngram_size: int = field(default=4, metadata={"help": "N: the heads draft N - 1 words."})
    dataset: str | None = field(
        default=None, metadata={"help": "Corpus, file, folder, or name on the Hub; None: the model's own text."}
    )
    max_train_words: int | None = field(default=None, metadata={"help": "Train on so many words of it only."})
    num_generated: int = field(default=2000, metadata={"help": "Texts that the model writes itself."})
    block_size: int = field(default=128, metadata={"help": "Tokens in a row of a batch."})
    num_prompts: int = field(default=8, metadata={"help": "Held-out texts to measure on."})
    prompt_tokens: int = field(default=16, metadata={"help": "Their first tokens are the prompt."})
    max_new_tokens: int = field(default=96, metadata={"help": "Tokens to generate for each."})
    branches: int = field(default=3, metadata={"help": "Branches of the draft trees that are measured too."})
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace an older output."})

    def __post_init__(self) -> None:
        super().__post_init__()
        for kind in self.kinds:
            settings_of(kind)


def main() -> None:
    """Train each kind of heads with each seed, and compare how fast they decode."""
    setup, args = parse(Setup, MultiTokenTrainingArguments)
    outputs = (*TRAINER_OUTPUT, *TOKENIZER_OUTPUT)
    run = Run(setup, args, outputs=outputs, rows=setup.kinds, seeds=setup.seeds, setting="kinds")
    if run.resume:
        raise ValueError(
            "heads are trained in minutes, and a run that was broken off is not resumed; leave out "
            "resume_from_checkpoint, and pass --overwrite_output_dir true"
        )
    base = load_base(setup.model_name_or_path).to(args.device)  # pyright: ignore[reportArgumentType]
    tokenizer = AutoTokenizer.from_pretrained(setup.model_name_or_path)
    train, held_out = draft_text(
        base,
        tokenizer,
        dataset=setup.dataset,
        max_train_words=setup.max_train_words,
        block_size=setup.block_size,
        num_generated=setup.num_generated,
        num_held_out=setup.num_prompts,
        seed=setup.seeds[0],
    )
    print(f"{len(train)} blocks of {setup.block_size} tokens to train {', '.join(setup.kinds)} heads on")

    run.begin()
    ways = {"plain": Way(base, {})}
    draft = {"draft_tokens": setup.ngram_size - 1}
    for kind, args.seed in product(setup.kinds, setup.seeds):
        model = train_draft_heads(base, kind, args, train, ngram_size=setup.ngram_size)
        folder = row_folder(kind, args.seed)
        model.save_pretrained(run.folder / folder, heads_only=True)
        ways[folder] = Way(model, draft, kind)
        tree = {**draft, "draft_branches": setup.branches}
        ways[f"{folder}, tree"] = Way(model, tree, f"{kind}, {setup.branches} branches")
    tokenizer.save_pretrained(run.folder)
    prompts = torch.tensor(held_out["input_ids"][: setup.num_prompts])[:, : setup.prompt_tokens]
    for size in (1, len(prompts)):
        batches = list(prompts.split(size))
        print(f"\nGreedy, {size} row(s) at once, {setup.max_new_tokens} new tokens each\n")
        print(format_speeds(compare_speeds(ways, batches, max_new_tokens=setup.max_new_tokens)))
    print(f"\nHeads: {run.folder}")


if __name__ == "__main__":
    main()
