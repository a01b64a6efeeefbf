"""What draft heads are trained on: the kinds of heads, their base model, and text, which the base may write itself."""

import copy
from functools import partial
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.positions import position_limit
from hf_targets.backbones.reformer.repair import repair_reformer
from hf_targets.data.blocks import pack_blocks
from hf_targets.data.corpora import load_corpus
from hf_targets.multitoken.causal import MultiTokenForCausalLM
from hf_targets.multitoken.heads import HEADS

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


@torch.no_grad()
def sample_blocks(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    num_blocks: int,
    block_size: int,
    batch_size: int = 64,
    temperature: float = 1.0,
    seed: int = 0,
) -> Dataset:
    """Return blocks of tokens sampled from a causal model, up to an end token of its generation configuration.

    A block begins with the tokenizer's `bos_token_id`, or else its `eos_token_id`; a text that ends before `block_size`
    is padded on the right. The global random state stays as it was.

    Returns: `input_ids`, `attention_mask` and `labels` (-100 at padding), as `pack_blocks` gives them.
    """
    limit = position_limit(model)
    if limit is not None and block_size > limit:
        raise ValueError(f"block_size must be at most the model's {limit} positions, got {block_size}")
    first = next((id_ for id_ in (tokenizer.bos_token_id, tokenizer.eos_token_id) if isinstance(id_, int)), None)
    if first is None:
        raise ValueError("a text begins with the tokenizer's bos_token or eos_token, and it has neither; set either")
    known: Any = model.generation_config.eos_token_id  # pyright: ignore[reportOptionalMemberAccess]
    ends = [] if known is None else torch.as_tensor(known).flatten().tolist()
    padding: Any = next((id_ for id_ in (*ends, tokenizer.eos_token_id) if isinstance(id_, int)), 0)
    sampler = copy.copy(model)  # shares the weights; `generate` takes options that are not given from generation_config
    ending: Any = {"max_length": block_size, "eos_token_id": ends or None, "pad_token_id": padding}
    sampler.generation_config = GenerationConfig(do_sample=True, temperature=temperature, top_k=0, **ending)
    blocks = []
    with torch.random.fork_rng(list(range(torch.cuda.device_count()))):
        torch.manual_seed(seed)
        for start in range(0, num_blocks, batch_size):
            prompt = torch.full((min(batch_size, num_blocks - start), 1), first, device=model.device)
            sampled = sampler.generate(prompt, attention_mask=torch.ones_like(prompt))  # pyright: ignore
            blocks.append(torch.nn.functional.pad(sampled, (0, block_size - sampled.shape[1]), value=padding))
    ids = torch.cat(blocks).cpu()
    text = torch.ones_like(ids)
    ended = torch.isin(ids[:, 1:], torch.tensor(ends, dtype=ids.dtype)).int().cumsum(dim=1)
    text[:, 2:] = (ended[:, :-1] == 0).long()  # the end token belongs to the text, later tokens are padding
    labels = ids.masked_fill(text == 0, -100)
    return Dataset.from_dict({"input_ids": ids.numpy(), "attention_mask": text.numpy(), "labels": labels.numpy()})


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

    They are the train and validation parts of a corpus for `load_corpus`, or without one `num_generated` and
    `num_held_out` blocks sampled from the base. Heads for greedy decoding learn more at a low temperature.
    """
    if dataset is None:
        sample = partial(sample_blocks, base, tokenizer, block_size=block_size, temperature=temperature)
        return sample(num_blocks=num_generated, seed=seed), sample(num_blocks=num_held_out, seed=seed + 1)
    texts = load_corpus(dataset, max_train_words=max_train_words, config_name=config_name, text_column=text_column)
    return pack_blocks(texts["train"], tokenizer, block_size), pack_blocks(texts["validation"], tokenizer, block_size)
