"""Train a causal language model plainly, with simple N-gram heads and with word difference heads, and compare them.

On the documentation that ships with Python, from scratch, offline, in a few minutes on two CPU cores:
    accelerate launch recipes/finetune_gptneo_wdr.py recipes/settings/finetune_gptneo_wdr/smoke.yaml

As the paper fine-tunes GPT-Neo on WikiText-2, with three seeds (one 24 GB GPU, about a day a row and seed there;
expected 13.25 plain, 13.13 and 12.93 with the ensemble for the simple N-gram, 13.00 and 12.91 for word differences):
    accelerate launch recipes/finetune_gptneo_wdr.py recipes/settings/finetune_gptneo_wdr/paper.yaml
Any causal model, any text: --model_name_or_path EleutherAI/gpt-neo-125m --dataset my_text.txt.gz --output_dir mine
"""

import shlex
import sys
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, cast

from hf_targets.training.runs import Run
from transformers import AutoModelForCausalLM, AutoTokenizer, GPTNeoConfig, PreTrainedModel

from hf_targets import (
    MultiTokenConfig,
    MultiTokenForCausalLM,
    MultiTokenTrainer,
    MultiTokenTrainingArguments,
    add_lora,
    load_corpus,
    pack_blocks,
    train_bpe_tokenizer,
)
from hf_targets.figures.learning_curves import plot_learning_curves
from hf_targets.training.comparison import is_better, train_rows
from hf_targets.training.model_card import create_repository, save_with_card, upload_folder
from hf_targets.training.outputs import MODEL_OUTPUT
from hf_targets.training.seeds import SeedSettings, row_folder
from hf_targets.training.settings import parse
from hf_targets.training.tables import format_differences, format_table, histories


@dataclass
class Setup(SeedSettings):
    """What is trained on what."""

    model_name_or_path: str | None = field(default=None, metadata={"help": "Base model; None: a new small GPT-Neo."})
    dataset: str = field(default="documentation", metadata={"help": "Corpus, file, folder, or name on the Hub."})
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a data set on the Hub."})
    text_column: str = field(default="text", metadata={"help": "Column that holds the text."})
    max_train_words: int | None = field(default=None, metadata={"help": "Train on so many words only."})
    block_size: int = field(default=1024, metadata={"help": "Tokens in a row of a batch."})
    rows: list[str] = field(
        default_factory=lambda: ["plain", "simple", "wdr"], metadata={"help": "Which of plain, simple and wdr."}
    )
    simple_ngram_size: int = field(default=2, metadata={"help": "N of the simple N-gram."})
    simple_loss_weight: float = field(default=0.1, metadata={"help": "Alpha of the simple N-gram."})
    wdr_ngram_size: int = field(default=4, metadata={"help": "N of the word differences."})
    wdr_loss_weight: float = field(default=0.1, metadata={"help": "Alpha of the word differences."})
    lora_rank: int | None = field(default=None, metadata={"help": "LoRA's rank on the backbone; None: all of it."})
    vocab_size: int = field(default=2048, metadata={"help": "Of the tokenizer trained for a new model."})
    hidden_size: int = field(default=96, metadata={"help": "Of a new model."})
    num_layers: int = field(default=2, metadata={"help": "Of a new model; an even number."})
    num_heads: int = field(default=4, metadata={"help": "Attention heads of a new model."})
    dropout: float = field(default=0.1, metadata={"help": "Of a new model."})
    prompt: str = field(default="The ", metadata={"help": "What the sample begins with."})
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace an older output."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := set(self.rows) - {"plain", "simple", "wdr"}:
            raise ValueError(f"rows must be of plain, simple and wdr, got {', '.join(sorted(unknown))}")
        MultiTokenConfig(ngram_size=self.simple_ngram_size, loss_weight=self.simple_loss_weight)
        MultiTokenConfig(ngram_size=self.wdr_ngram_size, loss_weight=self.wdr_loss_weight)


def new_or_pretrained(setup: Setup, vocab_size: int) -> PreTrainedModel:
    """Return the model that a row starts from."""
    if setup.model_name_or_path is not None:
        return AutoModelForCausalLM.from_pretrained(setup.model_name_or_path)
    config = GPTNeoConfig(
        vocab_size=vocab_size,
        hidden_size=setup.hidden_size,
        num_layers=setup.num_layers,
        num_heads=setup.num_heads,
        attention_types=[[["global", "local"], setup.num_layers // 2]],
        max_position_embeddings=setup.block_size,
        embed_dropout=setup.dropout,
        resid_dropout=setup.dropout,
        attention_dropout=setup.dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    return AutoModelForCausalLM.from_config(config)


def make_model(setup: Setup, vocab_size: int, row: str) -> PreTrainedModel:
    """Return the untrained model of a row."""
    model = new_or_pretrained(setup, vocab_size)
    if row != "plain":
        simple = row == "simple"
        model = MultiTokenForCausalLM.from_base(
            model,
            target="embedding" if simple else "difference",
            ngram_size=setup.simple_ngram_size if simple else setup.wdr_ngram_size,
            loss_weight=setup.simple_loss_weight if simple else setup.wdr_loss_weight,
        )
    return model if setup.lora_rank is None else add_lora(model, setup.lora_rank)


def main() -> None:
    """Train the rows with each seed, print their table, and leave the best model of the last row with its card."""
    setup, args = parse(Setup, MultiTokenTrainingArguments)
    outputs = (*MODEL_OUTPUT, "README.md", "learning_curves.png", "results.json")
    run = Run(setup, args, rows=setup.rows, seeds=setup.seeds, outputs=outputs)
    columns = {"config_name": setup.dataset_config, "text_column": setup.text_column}
    texts = load_corpus(setup.dataset, max_train_words=setup.max_train_words, **columns)
    if setup.model_name_or_path is not None:
        tokenizer = AutoTokenizer.from_pretrained(setup.model_name_or_path)
    else:
        tokenizer = train_bpe_tokenizer(texts["train"]["text"], setup.vocab_size, setup.block_size)
    corpus = {str(split): pack_blocks(text, tokenizer, setup.block_size) for split, text in texts.items()}
    make_model(setup, len(tokenizer), setup.rows[-1])  # whatever is wrong with it is told before the first row
    folder, name = run.folder, args.hub_model_id or run.folder.name
    if args.push_to_hub and not args.process_index:
        create_repository(name, args)

    models = {row: partial(make_model, setup, len(tokenizer), row) for row in setup.rows}
    rows, best, model = [], None, None
    settings = {"seeds": setup.seeds, "settings": asdict(setup)}
    for rows, trainer in train_rows(models, args, corpus, run, make_trainer=MultiTokenTrainer, **settings):
        if rows[-1].name == setup.rows[-1] and is_better(rows[-1], best):
            best, model = rows[-1], cast(PreTrainedModel, trainer.model).cpu()
    if args.process_index or best is None or model is None:
        return

    if setup.lora_rank is not None:
        model = cast(Any, model).merge_and_unload()
    told = {"dataset": setup.dataset, "command": shlex.join(["accelerate", "launch", *sys.argv])}
    told |= {"prompt": setup.prompt, "head_warmup_steps": args.head_warmup_steps}
    sample = save_with_card(folder, name, model, tokenizer, rows, best, **told)
    plot_learning_curves(histories(rows), folder / "learning_curves.png")
    print(f"\n{format_table(rows)}\n\n{format_differences(rows)}\n\nSample: {sample!r}")
    print(f"Model (seed {best.seed}), card and learning curves: {folder}")
    if args.push_to_hub:
        leave_out = [row_folder(row.name, row.seed) for row in rows]
        print(f"Uploaded: {upload_folder(folder, name, args, leave_out=leave_out)}")


if __name__ == "__main__":
    main()
