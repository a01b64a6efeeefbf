"""Train draft heads on any frozen causal language model in minutes, and print how much faster it decodes with them.

On the model that `make run` leaves, offline (a quick check that it runs):
    python recipes/train_draft_heads.py recipes/settings/train_draft_heads/smoke.yaml

On a model of the Hub or of your own, with the text it was trained on, or with text it writes itself (the default):
    python recipes/train_draft_heads.py recipes/settings/train_draft_heads/paper.yaml --dataset my_text.txt.gz
On stories260K, from the files that llama2.c publishes; 2.5 to 5 minutes for each of four kinds on one busy core:
    python recipes/lab/llama2c.py stories260K.bin tok512.bin stories260K
    python recipes/train_draft_heads.py recipes/settings/train_draft_heads/stories.yaml

The heads of each kind and seed end in a folder of their own, a few MB that name their base model. Measured:
recipes/multitoken.md.
"""

from dataclasses import dataclass, field
from itertools import product

import torch
from transformers import AutoTokenizer

from hf_targets import (
    DRAFT_USAGE,
    TOKENIZER_OUTPUT,
    TRAINER_OUTPUT,
    CardFacts,
    Experiment,
    ExperimentSettings,
    MultiTokenTrainingArguments,
    TextSettings,
    field_of,
    loadable_name,
    log_briefly,
    parse_settings,
    train_draft_heads,
    write_card,
)
from hf_targets.backbones.positions import position_limit
from hf_targets.multitoken.draft_heads import KINDS, draft_text, load_base, settings_of
from lab.speed import DecodingMethod, compare_speeds, format_speeds


@dataclass(kw_only=True)
class Setup(ExperimentSettings, TextSettings):
    """Which heads on which model, trained on what."""

    model_name_or_path: str = field(metadata={"help": "The model that is to decode faster: a folder, or a Hub id."})
    kinds: list[str] = field(
        default_factory=lambda: ["wdr"], metadata={"help": f"Of {', '.join(KINDS)}, or a registered head."}
    )
    ngram_size: int = field(default=4, metadata={"help": "N: the heads draft N - 1 tokens."})
    draft_vocab_size: int | None = field(
        default=None, metadata={"help": "Draft only so many tokens, those most frequent in the text; None: any token."}
    )
    dataset: str | None = field_of(TextSettings, "dataset", None, note="None: text that the model writes itself.")
    num_generated: int = field(default=2000, metadata={"help": "Texts that the model writes itself."})
    temperature: float = field(default=1.0, metadata={"help": "Of those texts: near 0 for heads of greedy decoding."})
    block_size: int = field(default=128, metadata={"help": "Tokens in a row of a batch."})
    num_prompts: int = field(default=8, metadata={"help": "Held-out texts to measure on."})
    prompt_tokens: int = field(default=16, metadata={"help": "Their first tokens are the prompt."})
    max_new_tokens: int = field(default=96, metadata={"help": "Tokens to generate for each."})
    branches: int = field(default=3, metadata={"help": "Branches of the draft trees that are measured too."})

    def __post_init__(self) -> None:
        super().__post_init__()
        for kind in self.kinds:
            settings_of(kind)


def main() -> None:
    """Train each kind of heads with each seed, and compare how fast they decode."""
    setup, args = parse_settings(Setup, MultiTokenTrainingArguments)
    outputs = (*TRAINER_OUTPUT, *TOKENIZER_OUTPUT)
    experiment = Experiment(setup, args, outputs=outputs, models=setup.kinds, seeds=setup.seeds, setting="kinds")
    if experiment.resume:
        raise ValueError(
            "heads are trained in minutes, and an experiment that was broken off is not resumed; leave out "
            "resume_from_checkpoint, and pass --overwrite_output_dir true"
        )
    base = load_base(setup.model_name_or_path).to(args.device)  # pyright: ignore[reportArgumentType]
    limit, longest = position_limit(base), setup.prompt_tokens + setup.max_new_tokens
    if limit is not None and max(setup.block_size, longest) > limit:
        raise ValueError(
            f"block_size, and prompt_tokens with max_new_tokens, must be at most the model's {limit} positions, got "
            f"{setup.block_size}, and {setup.prompt_tokens} with {setup.max_new_tokens}; lower them"
        )
    tokenizer = AutoTokenizer.from_pretrained(setup.model_name_or_path)
    train, held_out = draft_text(
        base,
        tokenizer,
        dataset=setup.dataset,
        config_name=setup.dataset_config,
        text_column=setup.text_column,
        max_train_words=setup.max_train_words,
        block_size=setup.block_size,
        num_generated=setup.num_generated,
        num_held_out=setup.num_prompts,
        temperature=setup.temperature,
        seed=setup.seeds[0],
    )

    experiment.begin()
    methods = {"plain": DecodingMethod(base, {})}
    draft = {"draft_tokens": setup.ngram_size - 1}
    sizes = {"ngram_size": setup.ngram_size, "draft_vocab_size": setup.draft_vocab_size}
    planned = list(product(setup.kinds, setup.seeds))
    for number, (kind, args.seed) in enumerate(planned, start=1):
        folder = experiment.folder_of(kind, args.seed)
        if not args.process_index:
            print(f"run {number}/{len(planned)}: {folder.name}, {len(train)} blocks of {setup.block_size} tokens")
        model = train_draft_heads(base, kind, args, train, prepare=log_briefly, **sizes)
        methods[folder.name] = DecodingMethod(model, draft, kind)
        tree = {**draft, "draft_branches": setup.branches}
        methods[f"{folder.name}, tree"] = DecodingMethod(model, tree, f"{kind}, {setup.branches} branches")
        if not args.process_index:
            model.save_pretrained(folder, heads_only=True)
            tokenizer.save_pretrained(folder)
    if args.process_index:
        return
    tokenizer.save_pretrained(experiment.folder)
    prompts = torch.tensor(held_out["input_ids"][: setup.num_prompts])[:, : setup.prompt_tokens]
    tables, passes = [], {}
    for size in (1, len(prompts)):
        speeds = compare_speeds(methods, list(prompts.split(size)), max_new_tokens=setup.max_new_tokens)
        passes = passes or {name: speed.tokens_per_pass for name, speed in zip(methods, speeds, strict=True)}
        heading = f"Greedy, {size} row(s) at once, {setup.max_new_tokens} new tokens each"
        tables.append(f"{heading}\n\n{format_speeds(speeds)}")
    facts = CardFacts(
        dataset=setup.dataset or "text that the base model wrote itself",
        results="\n\n".join(tables),
        usage=DRAFT_USAGE,
        base_model=setup.model_name_or_path,
        **setup.stated(),
    )
    for kind, seed in planned:
        folder = experiment.folder_of(kind, seed)
        metrics = {"tokens per forward pass, one row": passes[folder.name]}
        write_card(folder, loadable_name(folder), facts, metrics, seeds=setup.seeds, seed=seed)
    print("\n\n".join(["", *tables, f"Heads and cards: {experiment.folder}"]))


if __name__ == "__main__":
    main()
