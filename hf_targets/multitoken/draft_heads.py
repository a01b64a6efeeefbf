"""Heads for drafting, trained on a frozen backbone."""

from collections.abc import Callable
from functools import partial
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from hf_targets.backbones.reformer.repair import repair_reformer
from hf_targets.data.blocks import pack_blocks
from hf_targets.data.corpora import load_corpus
from hf_targets.multitoken.causal import MultiTokenForCausalLM
from hf_targets.multitoken.heads import HEADS
from hf_targets.multitoken.self_generated import sample_blocks
from hf_targets.multitoken.trainer import MultiTokenTrainer, MultiTokenTrainingArguments

KINDS: dict[str, dict[str, Any]] = {
    "wdr": {"target": "difference", "head": "conditional"},
    "wdr-plain": {"target": "difference", "head": "mlp"},
    "simple": {"target": "embedding", "head": "mlp"},
    "medusa": {"target": "embedding", "head": "medusa"},
}
"""Kinds of draft heads by name, each with its target and its head."""


def settings_of(kind: str) -> dict[str, Any]:
    """Return the fields of `MultiTokenConfig` for a kind of draft heads: one of `KINDS`, or any registered head.

    A registered head predicts word differences if it reads the conjugate, else embeddings.

    Raises:
        ValueError: If no kind has this name; the message lists the kinds.
    """
    if kind in KINDS:
        return KINDS[kind]
    if kind in HEADS:
        return {"target": "difference" if HEADS[kind].reads_conjugate else "embedding", "head": kind}
    raise ValueError(f"draft heads must be one of {', '.join({**KINDS, **HEADS})}, got {kind!r}")


def load_base(name_or_path: str) -> PreTrainedModel:
    """Load a causal language model in evaluation mode; if it has future-token heads, return its backbone."""
    model = repair_reformer(AutoModelForCausalLM.from_pretrained(name_or_path))
    if isinstance(model, MultiTokenForCausalLM):
        model = model.backbone
        model.name_or_path = name_or_path  # heads saved without the backbone name this as their base model
    return model.eval()


def draft_text(
    base: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    dataset: str | None,
    block_size: int,
    num_generated: int,
    num_held_out: int,
    max_train_words: int | None = None,
    config_name: str | None = None,
    text_column: str = "text",
    temperature: float = 1.0,
    seed: int = 0,
) -> tuple[Dataset, Dataset]:
    """Return blocks of tokens for training draft heads, and blocks for measuring them.

    Args:
        dataset: A corpus for `load_corpus`, of which the train and validation parts are used; None samples both from
            the base model.
        max_train_words, config_name, text_column: As for `load_corpus`.
        num_generated, num_held_out: How many blocks to sample for training and for measuring.
        temperature: Of these samples. Heads for greedy decoding learn more from samples near the greedy text.
    """
    if dataset is None:
        sample = partial(sample_blocks, base, tokenizer, block_size=block_size, temperature=temperature)
        return sample(num_blocks=num_generated, seed=seed), sample(num_blocks=num_held_out, seed=seed + 1)
    texts = load_corpus(dataset, max_train_words=max_train_words, config_name=config_name, text_column=text_column)
    return pack_blocks(texts["train"], tokenizer, block_size), pack_blocks(texts["validation"], tokenizer, block_size)


def train_draft_heads(
    base: PreTrainedModel,
    kind: str,
    args: MultiTokenTrainingArguments,
    train: Dataset,
    *,
    ngram_size: int,
    draft_vocab_size: int | None = None,
    prepare: Callable[[MultiTokenTrainer], object] | None = None,
) -> MultiTokenForCausalLM:
    """Train new draft heads on a frozen base model, and return the model with them.

    The loss is equation (6) with alpha = 1; only the part of the heads has a gradient. The base model is not copied,
    and runs without dropout.

    Args:
        kind: A name that `settings_of` takes.
        ngram_size: N; the heads draft up to N - 1 tokens.
        draft_vocab_size: They draft only this many tokens, those most frequent in `train`; None: any token.
        prepare: Called with the trainer before the training, such as `log_briefly`.
    Raises:
        ValueError: If the kind is unknown.
    """
    settings = {**settings_of(kind), "draft_vocab_size": draft_vocab_size}
    set_seed(args.seed)
    model = MultiTokenForCausalLM.from_base(base, ngram_size=ngram_size, loss_weight=1.0, **settings)
    model.backbone.requires_grad_(False)
    if model.heads.draft_vocabulary is not None:
        model.heads.draft_vocabulary.choose(train["input_ids"])
    trainer = MultiTokenTrainer(model=model, args=args, train_dataset=train)
    if prepare is not None:
        prepare(trainer)
    trainer.train()
    return model.eval()
