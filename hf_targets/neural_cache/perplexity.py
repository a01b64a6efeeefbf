"""The perplexity of a test text with a continuous cache, which remembers across the blocks of the text."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.output_inputs import output_inputs
from hf_targets.backbones.weight_access import execution_device
from hf_targets.data.batches import padded_rows
from hf_targets.data.token_rows import NUM_WORDS, sum_of_words
from hf_targets.evaluation.perplexity import BlockPerplexity, row_of_block
from hf_targets.maths.losses import IGNORED
from hf_targets.neural_cache.cache import NeuralCache
from hf_targets.neural_cache.memory import CacheMemory
from hf_targets.progress import progress

WITHOUT = "without cache"


@torch.no_grad()
def cached_perplexities(
    model: PreTrainedModel,
    blocks: Iterable[Mapping[str, Any]],
    caches: Mapping[str, NeuralCache],
    *,
    batch_size: int = 8,
) -> dict[str, BlockPerplexity]:
    """Return the perplexities of a text without a cache (`"without cache"`) and with each cache, from one pass over it.

    The model reads each block for itself; the caches go on from block to block, in the order of the text.

    Args:
        model: Any causal language model; its dropout is off meanwhile.
        blocks: In the order of the text, as for `perplexity_of_blocks`.
        caches: By name.
        batch_size: Blocks in one forward pass; the result does not depend on it but for rounding.
    Raises:
        ValueError: If there is no target, the text has fewer words than the window of a cache, a block is malformed
            (`perplexity_of_blocks`), or the model has an encoder.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    given = list(blocks)
    num_words = sum_of_words([block.get(NUM_WORDS) for block in given])
    rows = [row_of_block(block, index) for index, block in enumerate(given)]
    total = sum(int((labels[1:] != IGNORED).sum()) for _, labels in rows)
    if not total:
        raise ValueError(f"a perplexity needs a target, and {len(rows)} blocks have none; give longer blocks")
    for name, cache in caches.items():
        if cache.window > total:
            raise ValueError(
                f"the window of {name} has {cache.window} words, and the text {total}; give a longer text, or a window "
                "that is smaller"
            )
    device = execution_device(model)
    sums: dict[str, float] = dict.fromkeys([WITHOUT, *caches], 0.0)
    memories: dict[str, CacheMemory] = {}
    with output_inputs(model) as read, without_dropout(model), progress(len(rows), "reading", unit="block") as bar:
        for start in range(0, len(rows), batch_size):
            part = [row for row in rows[start : start + batch_size] if len(row[0]) > 1]
            bar.update(len(rows[start : start + batch_size]))
            if not part:
                continue
            ids, mask = padded_rows([row for row, _ in part])
            read.clear()
            logits = model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
            states, words, nlls = _in_order(read[0], logits, [labels for _, labels in part])
            sums[WITHOUT] += nlls[words != IGNORED].sum().item()
            for name, cache in caches.items():
                memory = memories.setdefault(name, cache.memory(1, states))
                found = cache.target_probabilities((-nlls)[None].exp(), states[None], words[None], memory)[0]
                sums[name] -= found[words != IGNORED].log().sum().item()
    return {name: BlockPerplexity(value, total, num_words) for name, value in sums.items()}


def _in_order(states: Tensor, logits: Tensor, labels: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return states (targets, d), the words that follow them, and the model's losses in float64, row after row."""
    counts = [len(row) - 1 for row in labels]
    words = torch.cat([row[1:] for row in labels]).to(logits.device)
    kept = torch.cat([row[:count] for row, count in zip(logits, counts, strict=True)])
    losses = F.cross_entropy(kept.float(), words, ignore_index=IGNORED, reduction="none").double()
    return torch.cat([row[:count] for row, count in zip(states, counts, strict=True)]), words, losses
