"""The perplexity of a test text with a continuous cache, which remembers across the blocks of the text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedModel

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.output_reading import output_inputs
from hf_targets.backbones.weight_access import execution_device
from hf_targets.data.batches import padded_rows
from hf_targets.data.progress import progress
from hf_targets.data.token_rows import NUM_WORDS, sum_of_words
from hf_targets.evaluation.perplexity import BlockPerplexity, row_of_block
from hf_targets.maths.losses import IGNORED
from hf_targets.neural_cache.cache import NeuralCache
from hf_targets.neural_cache.memory import CacheMemory

WITHOUT = "without cache"
_HALF = 0.5


def cached_perplexities(
    model: PreTrainedModel,
    blocks: Iterable[Mapping[str, Any]],
    caches: Mapping[str, NeuralCache],
    *,
    batch_size: int = 8,
    carries_state: bool = False,
) -> dict[str, BlockPerplexity]:
    """Return the perplexities of a text without a cache (`"without cache"`) and with each cache, from one pass over it.

    The model reads each block for itself, or goes on from block to block. The caches go on from block to block, in the
    order of the text.

    Args:
        model: Any causal language model; its dropout is off meanwhile.
        blocks: In the order of the text, as for `perplexity_of_blocks`.
        caches: By name.
        batch_size: Blocks in one forward pass; the result does not depend on it but for rounding.
        carries_state: Whether the model goes on from block to block with its `past_key_values`, one block at a time:
            right for a model of constant state, such as AWD-LSTM. Each block must then begin with the last token of the
            one before.
    Raises:
        ValueError: If there is no target, the text has fewer words than the window of a cache, a block is malformed
            (`perplexity_of_blocks`) or does not go on from the one before, or the model has an encoder.
    """
    if WITHOUT in caches:
        raise ValueError(f"a cache must not have the name {WITHOUT!r}, which the figures without one have; rename it")
    text = _Text.of(blocks, batch_size, caches.values())
    sums: dict[str, float] = dict.fromkeys([WITHOUT, *caches], 0.0)
    for nlls, with_caches in _target_probabilities(model, text, list(caches.values()), carries_state=carries_state):
        sums[WITHOUT] += nlls.sum().item()
        for name, probabilities in zip(caches, with_caches, strict=True):
            sums[name] -= probabilities.log().sum().item()
    return {name: BlockPerplexity(value, text.num_targets, text.num_words) for name, value in sums.items()}


def search_cache(
    model: PreTrainedModel,
    blocks: Iterable[Mapping[str, Any]],
    window: int,
    thetas: Sequence[float],
    weights: Sequence[float],
    *,
    batch_size: int = 8,
    carries_state: bool = False,
    waits: bool = False,
) -> NeuralCache:
    """Return the cache of the lowest perplexity of a text among all pairs of a theta and a weight.

    The model reads the text once, and each theta costs as much as one cache: weights cost nothing.

    Args:
        window: W of all caches.
        thetas, weights: To choose from; a weight of 0 is no cache.
        others: As for `cached_perplexities`.
    Raises:
        ValueError: As `cached_perplexities` does, or if there is no theta or no weight.
    """
    if not thetas or not weights:
        raise ValueError(f"a search needs a theta and a weight, got thetas={thetas} and weights={weights}")
    caches = [NeuralCache(window, theta, _HALF, waits) for theta in thetas]
    choices = [[NeuralCache(window, theta, weight, waits) for weight in weights] for theta in thetas]
    text = _Text.of(blocks, batch_size, caches)
    sums = torch.zeros(len(thetas), len(weights), dtype=torch.float64)
    for nlls, with_caches in _target_probabilities(model, text, caches, carries_state=carries_state):
        own = (-nlls).exp()
        for row, half in enumerate(with_caches):
            of_cache = 2 * half - own  # half is (own + of_cache) / 2, and own where the cache is silent
            for column, weight in enumerate(weights):
                sums[row, column] -= ((1 - weight) * own + weight * of_cache).log().sum().item()
    row, column = divmod(int(sums.argmin()), len(weights))
    return choices[row][column]


@dataclass(frozen=True)
class _Text:
    """A text in blocks.

    Attributes:
        rows: Ids and labels of each block.
        num_targets: Of all blocks, at least one.
        num_words: None if a block does not tell.
        batch_size: Blocks in one forward pass.
    """

    rows: list[tuple[Tensor, Tensor]]
    num_targets: int
    num_words: int | None
    batch_size: int

    @classmethod
    def of(cls, blocks: Iterable[Mapping[str, Any]], batch_size: int, caches: Iterable[NeuralCache]) -> Self:
        """Check blocks, and that no cache has a window that is longer than the text."""
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        given = list(blocks)
        num_words = sum_of_words([block.get(NUM_WORDS) for block in given])
        rows = [row_of_block(block, index) for index, block in enumerate(given)]
        total = sum(int((labels[1:] != IGNORED).sum()) for _, labels in rows)
        if not total:
            raise ValueError(f"a perplexity needs a target, and {len(rows)} blocks have none; give longer blocks")
        for cache in caches:
            if cache.window > total:
                raise ValueError(
                    f"the window of a cache has {cache.window} words, and the text {total}; give a longer text, or a "
                    "window that is smaller"
                )
        return cls(rows, total, num_words, batch_size)

    def check_goes_on(self) -> None:
        """Raise a ValueError if a block does not begin with the last token of the one before."""
        for index, ((before, _), (after, _)) in enumerate(pairwise(self.rows), start=1):
            if before[-1] != after[0]:
                raise ValueError(
                    f"a state that goes on needs one text, each block beginning with the last token of the one before, "
                    f"and block {index} begins with {after[0]} after {before[-1]}; make them with pack_blocks"
                )


@torch.no_grad()
def _target_probabilities(
    model: PreTrainedModel, text: _Text, caches: Sequence[NeuralCache], *, carries_state: bool
) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Yield the model's -log p of all targets, part by part, and their probabilities with each cache, in float64."""
    if carries_state:
        text.check_goes_on()
    device, size = execution_device(model), 1 if carries_state else text.batch_size
    memories: list[CacheMemory] = []
    state = DynamicCache() if carries_state else None
    with output_inputs(model) as read, without_dropout(model), progress(len(text.rows), "reading", unit="block") as bar:
        for start in range(0, len(text.rows), size):
            part = [row for row in text.rows[start : start + size] if len(row[0]) > 1]
            bar.update(len(text.rows[start : start + size]))
            if not part:
                continue
            read.clear()
            if carries_state:
                ids = part[0][0][None, :-1].to(device)
                logits = model(input_ids=ids, past_key_values=state, use_cache=True, return_dict=True).logits
            else:
                ids, mask = padded_rows([row for row, _ in part])
                logits = model(input_ids=ids.to(device), attention_mask=mask.to(device), return_dict=True).logits
            states, words, nlls = _in_order(read[0], logits, [labels for _, labels in part])
            nlls, kept = nlls.double(), words != IGNORED
            own = (-nlls).exp()
            memories = memories or [cache.memory(1, states) for cache in caches]
            found = [
                cache.target_probabilities(own[None], states[None], words[None], memory)[0][kept]
                for cache, memory in zip(caches, memories, strict=True)
            ]
            yield nlls[kept], found


def _in_order(states: Tensor, logits: Tensor, labels: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return states (targets, d), the words that follow them, and the model's losses in float64, row after row."""
    counts = [len(row) - 1 for row in labels]
    words = torch.cat([row[1:] for row in labels]).to(logits.device)
    kept = torch.cat([row[:count] for row, count in zip(logits, counts, strict=True)])
    losses = F.cross_entropy(kept.float(), words, ignore_index=IGNORED, reduction="none").double()
    return torch.cat([row[:count] for row, count in zip(states, counts, strict=True)]), words, losses
