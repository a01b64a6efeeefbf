"""Heads for drafting, trained on a backbone that stays as it is."""

from collections.abc import Callable
from functools import partial
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from hf_targets.data.blocks import pack_blocks
from hf_targets.data.corpora import load_corpus
from hf_targets.multitoken.arguments import MultiTokenTrainingArguments
from hf_targets.multitoken.causal import MultiTokenForCausalLM
from hf_targets.multitoken.head_kinds import HEADS
from hf_targets.multitoken.self_generated import sample_blocks
from hf_targets.multitoken.trainer import MultiTokenTrainer

KINDS: dict[str, dict[str, Any]] = {
    "wdr": {"target": "difference", "head": "conditional"},
    "wdr-plain": {"target": "difference", "head": "mlp"},
    "simple": {"target": "embedding", "head": "mlp"},
    "medusa": {"target": "embedding", "head": "medusa"},
}
"""Draft heads by name: what they predict, and what they are made of."""


def settings_of(kind: str) -> dict[str, Any]:
    """Return the fields of `MultiTokenConfig` of a kind of draft heads: one of `KINDS`, or any registered head.

    A registered head predicts word differences if it reads their conjugate, and embeddings if not.

    Raises:
        ValueError: If there is none of that name; it names those there are.
    """
    if kind in KINDS:
        return KINDS[kind]
    if kind in HEADS:
        return {"target": "difference" if HEADS[kind].reads_conjugate else "embedding", "head": kind}
    raise ValueError(f"draft heads must be one of {', '.join({**KINDS, **HEADS})}, got {kind!r}")


def load_base(name_or_path: str) -> PreTrainedModel:
    """Return a causal language model in evaluation mode; of a model with future-token heads, its backbone."""
    model = AutoModelForCausalLM.from_pretrained(name_or_path)
    if isinstance(model, MultiTokenForCausalLM):
        model = model.backbone
        model.name_or_path = name_or_path  # what heads saved alone name as their base
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
    seed: int = 0,
) -> tuple[Dataset, Dataset]:
    """Return blocks of tokens to train draft heads on, and others to measure them on.

    Args:
        dataset: As for `load_corpus`, whose train and validation parts they are; None samples from the model itself.
        max_train_words, config_name, text_column: As for `load_corpus`.
        num_generated, num_held_out: How many blocks to sample, if so.
    """
    if dataset is None:
        sample = partial(sample_blocks, base, tokenizer, block_size=block_size)
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
    prepare: Callable[[MultiTokenTrainer], object] | None = None,
) -> MultiTokenForCausalLM:
    """Return new heads of a kind on a base model, trained alone.

    The loss is equation (6) with alpha = 1, of which only the heads' part has a gradient. The base model is frozen,
    read without dropout, and not copied.

    Args:
        kind: As for `settings_of`.
        ngram_size: N: the heads draft up to N - 1 tokens.
        prepare: Called with the trainer before the training, such as `log_briefly`.
    Raises:
        ValueError: If the kind is unknown.
    """
    settings = settings_of(kind)
    set_seed(args.seed)
    model = MultiTokenForCausalLM.from_base(base, ngram_size=ngram_size, loss_weight=1.0, **settings)
    model.backbone.requires_grad_(False)
    trainer = MultiTokenTrainer(model=model, args=args, train_dataset=train)
    if prepare is not None:
        prepare(trainer)
    trainer.train()
    return model.eval()
