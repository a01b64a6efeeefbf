"""The perplexity of a test text with what is mixed in, such as a continuous cache, which remembers across blocks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

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
from hf_targets.evaluation.perplexity import BlockPerplexity, check_rows, row_of_block
from hf_targets.maths.losses import IGNORED
from hf_targets.maths.torch_modes import widest
from hf_targets.neural_cache.cache import NeuralCache

WITHOUT = "without cache"
_HALF = 0.5


def cached_perplexities(
    model: PreTrainedModel,
    blocks: Iterable[Mapping[str, Any]],
    caches: Mapping[str, Any],
    *,
    batch_size: int = 8,
    carries_state: bool = False,
) -> dict[str, BlockPerplexity]:
    """Return the perplexities of a text without a cache (`"without cache"`) and with each cache, from one pass over it.

    The caches go on from block to block, in the order of the text.

    Args:
        model: Any causal language model; its dropout is off meanwhile.
        blocks: In the order of the text, as for `perplexity_of_blocks`.
        caches: By name, each a `NeuralCache`, a `KnnProcessor`, or a sequence of them, where each is mixed into what
            the one before it gives.
        batch_size: Blocks in one forward pass; the result does not depend on it but for rounding.
        carries_state: Whether the model, too, goes on from block to block with its `past_key_values`, one block at a
            time: right for a model of constant state, such as AWD-LSTM. Each block must then begin with the last token
            of the one before.
    Raises:
        ValueError: If the caches have no names or one is called "without cache", there is no target, the text has fewer
            words than the window of a cache, a block is malformed (`perplexity_of_blocks`) or does not go on from the
            one before, or the model has an encoder.
    """
    if not isinstance(caches, Mapping) or WITHOUT in caches:
        raise ValueError(f"caches must be given by names other than {WITHOUT!r}, got {caches!r}")
    given, chains = list(blocks), [one if isinstance(one, Sequence) else (one,) for one in caches.values()]
    rows = _rows(given, [one for chain in chains for one in chain])
    sums: dict[str, float] = dict.fromkeys([WITHOUT, *caches], 0.0)
    for nlls, with_caches in _probabilities(model, rows, chains, batch_size, carries_state):
        sums[WITHOUT] += nlls.sum().item()
        for name, probabilities in zip(caches, with_caches, strict=True):
            sums[name] -= probabilities.log().sum().item()
    num_words = sum_of_words([block.get(NUM_WORDS) for block in given])
    return {name: BlockPerplexity(value, _num_targets(rows), num_words) for name, value in sums.items()}


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
    relative: bool = False,
) -> NeuralCache:
    """Return the cache of the lowest perplexity of a text among all pairs of a theta and a weight.

    The model reads the text once, and each theta costs as much as one cache: weights cost nothing.

    Args:
        window, waits, relative: Of all caches.
        thetas, weights: To choose from, at least one of each; a weight of 0 is no cache.
        others: As for `cached_perplexities`, as are the errors.
    """
    if not (len(thetas) and len(weights)):
        raise ValueError(f"there must be a theta and a weight to choose from, got {thetas!r} and {weights!r}")
    caches = [NeuralCache(window, theta, _HALF, waits, relative) for theta in thetas]
    choices = [[replace(cache, weight=weight) for weight in weights] for cache in caches]
    rows, sums = _rows(blocks, caches), torch.zeros(len(thetas), len(weights), dtype=torch.float64)
    for nlls, with_caches in _probabilities(model, rows, [[cache] for cache in caches], batch_size, carries_state):
        own = (-nlls).exp()
        for row, half in enumerate(with_caches):
            of_cache = 2 * half - own  # half is (own + of_cache) / 2, and own where the cache is silent
            for column, weight in enumerate(weights):
                sums[row, column] -= ((1 - weight) * own + weight * of_cache).log().sum().item()
    row, column = divmod(int(sums.argmin()), len(weights))
    return choices[row][column]


def _num_targets(rows: list[tuple[Tensor, Tensor]]) -> int:
    return sum(int((labels[1:] != IGNORED).sum()) for _, labels in rows)


def _rows(blocks: Iterable[Mapping[str, Any]], caches: Iterable[Any]) -> list[tuple[Tensor, Tensor]]:
    """Return the ids and labels of each block, which together have as many targets as the windows."""
    rows = [row_of_block(block, index) for index, block in enumerate(blocks)]
    window, total = max((one.window for one in caches if isinstance(one, NeuralCache)), default=1), _num_targets(rows)
    if window > total:
        raise ValueError(f"a text of {total} words is shorter than the window of a cache, {window}; give a longer text")
    return rows


def _probabilities(
    model: PreTrainedModel,
    rows: list[tuple[Tensor, Tensor]],
    chains: Sequence[Sequence[Any]],
    batch_size: int,
    carries_state: bool,
) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Yield the model's -log p of all targets, part by part, and their probabilities with each chain, in float64."""
    memories: list[list[Any]] = []
    for states, words, nlls in read_blocks(model, rows, batch_size, carries_state=carries_state):
        memories = memories or [[one.memory(1, states) for one in chain] for chain in chains]
        own, kept, found = (-nlls).exp()[None], words != IGNORED, []
        for chain, seen in zip(chains, memories, strict=True):
            mixed = own
            for one, memory in zip(chain, seen, strict=True):
                mixed = one.target_probabilities(mixed, states[None], words[None], memory)
            found.append(mixed[0][kept])
        yield nlls[kept], found


@torch.no_grad()
def read_blocks(
    model: PreTrainedModel,
    rows: Sequence[tuple[Tensor, Tensor]],
    batch_size: int,
    *,
    carries_state: bool = False,
    with_losses: bool = True,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield of each batch, row after row: what the output embeddings read, the words that follow, the model's losses.

    They are (targets, d), (targets,) with -100 for none, and (targets,) in float64; without losses these are empty, and
    the output embeddings multiply nothing.
    """
    if carries_state and any(before[-1] != after[0] for (before, _), (after, _) in pairwise(rows)):
        raise ValueError("each block must begin with the last token of the one before; make them with pack_blocks")
    if batch_size < 1:
        raise ValueError(f"batch_size must be 1 or more, got {batch_size}")
    check_rows(model, rows)
    device, size = execution_device(model), 1 if carries_state else batch_size
    state = DynamicCache() if carries_state else None
    reading = output_inputs(model, with_logits=with_losses)
    with reading as read, without_dropout(model), progress(len(rows), "reading", unit="block") as bar:
        for start in range(0, len(rows), size):
            part = [row for row in rows[start : start + size] if len(row[0]) > 1]
            bar.update(len(rows[start : start + size]))
            if not part:
                continue
            read.clear()
            if carries_state:
                ids = part[0][0][None, :-1].to(device)
                logits = model(input_ids=ids, past_key_values=state, use_cache=True, return_dict=True).logits
            else:
                ids, mask = padded_rows([row for row, _ in part])
                logits = model(input_ids=ids.to(device), attention_mask=mask.to(device), return_dict=True).logits
            yield _in_order(read[0], logits if with_losses else None, [labels for _, labels in part])


def _in_order(states: Tensor, logits: Tensor | None, labels: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return states (targets, d), the words that follow them, and the model's losses in `widest`, row after row."""
    counts = [len(row) - 1 for row in labels]
    words, losses = torch.cat([row[1:] for row in labels]).to(states.device), states.new_zeros(0)
    if logits is not None:
        kept = torch.cat([row[:count] for row, count in zip(logits, counts, strict=True)])
        losses = F.cross_entropy(kept.float(), words.to(kept.device), ignore_index=IGNORED, reduction="none")
        losses = losses.to(widest(kept.device))
    return torch.cat([row[:count] for row, count in zip(states, counts, strict=True)]), words, losses
