"""Train the paper's small Transformer decoder on Penn Treebank words: plain, simple N-gram and word differences.

The whole of table 1 (one GPU; the paper's test perplexities are 161.0 plain, 133.6 to 158.1 for the simple 4-gram and
124.1 to 150.5 for the word difference 4-gram, by ensemble weight):

    HF_TARGETS_DATA=data accelerate launch recipes/train_small_lm.py recipes/settings/train_small_lm/paper.yaml

Its rows of N = 3 with three seeds, at a size for a CPU: `.../cpu.yaml`; in a minute, on documentation:
`.../smoke.yaml`. Measured: recipes/README.md.
"""

from dataclasses import asdict, dataclass, field
from functools import partial

from hf_targets.training.runs import Run
from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedModel

from hf_targets import (
    MultiTokenForCausalLM,
    MultiTokenTrainer,
    MultiTokenTrainingArguments,
    load_corpus,
    pack_blocks,
    word_level_tokenizer,
)
from hf_targets.figures.learning_curves import plot_learning_curves
from hf_targets.training.comparison import train_rows
from hf_targets.training.seeds import SeedSettings
from hf_targets.training.settings import parse
from hf_targets.training.tables import format_differences, format_table, format_weights, histories


@dataclass
class Setup(SeedSettings):
    """The decoder of table 6, and the rows of table 1."""

    dataset: str = field(default="ptb", metadata={"help": "Corpus, file, folder, or name on the Hub."})
    max_train_words: int | None = field(default=None, metadata={"help": "Train on so many words only."})
    max_validation_blocks: int | None = field(
        default=None, metadata={"help": "Validate on so many blocks only; the test text is always whole."}
    )
    block_size: int = field(default=64, metadata={"help": "Words in a row of a batch."})
    hidden_size: int = field(default=256, metadata={"help": "d_model."})
    feed_forward_size: int = field(default=2100, metadata={"help": "d_ff."})
    num_layers: int = field(default=6, metadata={"help": "Layers."})
    num_heads: int = field(default=4, metadata={"help": "Attention heads."})
    dropout: float = field(default=0.3, metadata={"help": "P_drop."})
    ngram_sizes: list[int] = field(default_factory=lambda: [2, 3, 4], metadata={"help": "N of the rows with heads."})
    targets: list[str] = field(
        default_factory=lambda: ["embedding", "difference"],
        metadata={"help": '"embedding" for the simple N-gram, "difference" for word differences.'},
    )
    loss_weight: float = field(default=1.0, metadata={"help": "Alpha; 1 for all decoders on this corpus in table 8."})
    tied: bool = field(default=True, metadata={"help": "One embedding for input and output; else two."})
    patience: int | None = field(default=50, metadata={"help": "Evaluations without improvement before stopping."})
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace an older output."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := set(self.targets) - {"embedding", "difference"}:
            raise ValueError(f"targets must be of embedding and difference, got {', '.join(sorted(unknown))}")


def make_model(setup: Setup, vocab_size: int, target: str | None, ngram_size: int) -> PreTrainedModel:
    """Return the untrained model of a row; a plain one without a target."""
    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=setup.block_size,
        n_embd=setup.hidden_size,
        n_inner=setup.feed_forward_size,
        n_layer=setup.num_layers,
        n_head=setup.num_heads,
        resid_pdrop=setup.dropout,
        embd_pdrop=setup.dropout,
        attn_pdrop=setup.dropout,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=setup.tied,
    )
    model = AutoModelForCausalLM.from_config(config)
    if target is None:
        return model
    return MultiTokenForCausalLM.from_base(model, target=target, ngram_size=ngram_size, loss_weight=setup.loss_weight)


def main() -> None:
    """Train the rows one after the other, with each seed; the table is written anew after each."""
    setup, args = parse(Setup, MultiTokenTrainingArguments)
    wanted: dict[str, tuple[str | None, int]] = {"plain": (None, 1)}
    for target in setup.targets:
        for ngram_size in setup.ngram_sizes:
            wanted[f"{'simple' if target == 'embedding' else 'wdr'}-{ngram_size}"] = (target, ngram_size)
    run = Run(setup, args, outputs=("learning_curves.png", "results.json"), rows=list(wanted), seeds=setup.seeds)
    texts = load_corpus(setup.dataset, max_train_words=setup.max_train_words)
    tokenizer = word_level_tokenizer(load_corpus(setup.dataset)["train"]["text"])
    corpus = {str(split): pack_blocks(text, tokenizer, setup.block_size) for split, text in texts.items()}
    if setup.max_validation_blocks is not None:
        corpus["validation"] = corpus["validation"].take(setup.max_validation_blocks)

    models = {row: partial(make_model, setup, len(tokenizer), *heads) for row, heads in wanted.items()}
    settings = {"seeds": setup.seeds, "patience": setup.patience, "settings": asdict(setup)}
    for rows, trainer in train_rows(models, args, corpus, run, make_trainer=MultiTokenTrainer, **settings):
        if trainer.is_world_process_zero():
            print(f"\n{format_table(rows)}\n\n{format_weights(rows)}\n\n{format_differences(rows)}\n", flush=True)
            plot_learning_curves(histories(rows), run.folder / "learning_curves.png")


if __name__ == "__main__":
    main()
