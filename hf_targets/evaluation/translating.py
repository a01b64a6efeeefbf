"""Translations of a whole test set, in batches of about as many tokens each."""

from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.dropout import without_dropout
from hf_targets.data.pair_encoding import pair_lengths
from hf_targets.data.token_batches import TokenBatchSampler
from hf_targets.positions import position_limit
from hf_targets.progress import progress


@torch.no_grad()
def translate(
    model: PreTrainedModel,
    pairs: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    num_beams: int = 5,
    batch_tokens: int = 4096,
    **settings: Any,
) -> list[str]:
    """Return a model's translations of encoded pairs, in their order, without special tokens.

    A translation has at most twice the tokens of the longest source of its batch and ten more, unless `settings` say
    otherwise. Sources of similar length are translated together.

    Args:
        pairs: As `encode_pairs` makes them; their labels are not read.
        num_beams: 1 takes the most probable token at each step.
        batch_tokens: Tokens of the sources of a batch, padding included, times the beams.
        settings: More arguments of `generate`, such as `ensemble_weight`, `draft_tokens`, `max_new_tokens`.
    Raises:
        ValueError: If there are no beams, or as `generate` raises.
    """
    if num_beams < 1:
        raise ValueError(f"num_beams must be 1 or more, got {num_beams}; 1 searches greedily")
    limit = position_limit(model)
    longest = max(map(len, pairs["input_ids"]))
    room = max(batch_tokens // num_beams, longest, int(pair_lengths(pairs).max()))
    texts: dict[int, str] = {}
    with without_dropout(model), progress(len(pairs), "translating", unit="pair") as bar:
        for rows in TokenBatchSampler(pair_lengths(pairs), room, shuffle=False, seed=0):
            batch = pairs.select(rows)
            columns = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
            inputs = tokenizer.pad(columns, return_tensors="pt").to(model.device)
            length = 2 * inputs["input_ids"].shape[1] + 10
            told = {"max_new_tokens": length if limit is None else min(length, limit), "do_sample": False, **settings}
            found = model.generate(**inputs, num_beams=num_beams, **told)  # pyright: ignore[reportCallIssue]
            texts |= zip(rows, tokenizer.batch_decode(found, skip_special_tokens=True), strict=True)
            bar.update(len(rows))
    return [texts[row].strip() for row in range(len(pairs))]
