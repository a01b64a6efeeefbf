"""Text sampled from a model, on which its draft heads can be trained if its own training text is not available."""

import copy
from typing import Any

import torch
from datasets import Dataset
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.positions import position_limit


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
    """Return blocks of tokens sampled from a causal model; the prompt of each block is a single token.

    A text ends at an end token of the model's generation configuration.

    Args:
        tokenizer: Its `bos_token_id`, or else its `eos_token_id`, is the first token of each block.
        num_blocks: Number of blocks, at least 1.
        block_size: Tokens in each block, at least 2; a text that ends earlier is padded on the right.
        batch_size: Blocks sampled at a time, at least 1.
        temperature: Sampling temperature, above 0.
        seed: Seed of the samples; the global random state stays as it was.
    Returns: `input_ids`, `attention_mask` and `labels` (-100 at padding), as `pack_blocks` gives them.
    Raises:
        ValueError: If the tokenizer has neither token, a size or the temperature is out of range, or blocks are longer
            than the model's positions.
    """
    if num_blocks < 1 or block_size < 2 or batch_size < 1 or not temperature > 0:
        raise ValueError(
            "num_blocks and batch_size must be at least 1, block_size 2, and temperature above 0, got "
            f"{num_blocks}, {batch_size}, {block_size} and {temperature}"
        )
    limit = position_limit(model)
    if limit is not None and block_size > limit:
        raise ValueError(f"block_size must be at most the model's {limit} positions, got {block_size}; lower it")
    first = next((id_ for id_ in (tokenizer.bos_token_id, tokenizer.eos_token_id) if isinstance(id_, int)), None)
    if first is None:
        raise ValueError("a text begins with the tokenizer's bos_token or eos_token, and it has neither; set either")
    known: Any = model.generation_config.eos_token_id  # pyright: ignore[reportOptionalMemberAccess]
    ends = [] if known is None else torch.as_tensor(known).flatten().tolist()
    padding: Any = next((id_ for id_ in (*ends, tokenizer.eos_token_id) if isinstance(id_, int)), 0)
    sampler = copy.copy(model)  # shares the weights; `generate` takes options that are not given from generation_config
    sampler.generation_config = GenerationConfig(
        do_sample=True,
        temperature=temperature,
        top_k=0,
        max_length=block_size,
        eos_token_id=ends or None,
        pad_token_id=padding,
    )
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
