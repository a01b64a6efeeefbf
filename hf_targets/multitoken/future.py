"""The predictions of a model's heads, a mask of those that exist, and their losses."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache, DynamicCache

from hf_targets.backbones.alignment import steps_into_sequence
from hf_targets.backbones.causal_call import CausalCall
from hf_targets.backbones.output_matrix import OutputMap
from hf_targets.backbones.weight_access import weighted_output_cross_entropy
from hf_targets.maths.ensemble import mix_predictions
from hf_targets.maths.losses import IGNORED, weighted_cross_entropy
from hf_targets.multitoken.configuration import MultiTokenConfig
from hf_targets.multitoken.heads import FutureHeads
from hf_targets.multitoken.hidden_state_cache import HiddenStateCache


def known_tokens(
    config: MultiTokenConfig, call: CausalCall, hidden: Tensor, cache: Cache | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the hidden states and tokens that the heads read, and the steps into the sequence of the new positions.

    With a cache, hidden states and tokens begin with earlier positions, from which heads predict the new targets.
    Without one, or at the first call, they belong to the new positions only.

    Raises:
        ValueError: If the heads predict word differences and the text of the call has no ids.
    """
    batch, time, _ = hidden.shape
    tokens = torch.zeros_like(hidden[..., 0], dtype=torch.long) if call.input_ids is None else call.input_ids
    if config.target == "difference" and call.input_ids is None:
        raise ValueError(
            'heads with target="difference" need token ids, as they add the embeddings of the tokens before the target '
            "to what they predict; give input_ids instead of inputs_embeds (decoder_input_ids to a decoder), or use "
            'heads with target="embedding"'
        )
    layer = None
    if isinstance(cache, DynamicCache):
        layer = HiddenStateCache.find(cache)
        if layer is None:
            layer = HiddenStateCache()
            cache.layers.append(layer)
    before = None if layer is None else layer.last_steps()
    given = call.attention_mask, call.position_ids
    steps = steps_into_sequence(batch, time, *given, hidden.device, before=before)
    if layer is not None:
        hidden, tokens, _ = layer.extend(hidden, tokens, steps, window=config.ngram_size - 1)
    return hidden, tokens, steps


def read_future(
    heads: FutureHeads,
    output: OutputMap,
    matrix: Tensor,
    bias: Tensor | None,
    hidden: Tensor,
    tokens: Tensor,
    steps: Tensor,
    targets: Tensor | None,
    loss_weights: list[float],
    smoothing: float,
) -> tuple[list[Tensor], list[Tensor], Tensor | None, list[Tensor]]:
    """Return the heads' predictions, a mask of those that exist, the weighted sum of all losses, and each head's sum.

    Entry n - 1 of the first two is head n's: predicted embeddings (batch, time - n, d) and a mask (batch, time - n),
    whose last column predicts the target of the last position. Both are longer, up to `time`, if a cache holds earlier
    positions. Entry n of the last is the sum of L_n of equation (5), without a gradient; `loss_weights` weight these
    sums. Without targets there are no losses.
    """
    time = steps.shape[1]
    past = hidden.shape[1] - time
    rows = F.embedding(tokens[:, 1:], matrix.detach()) if heads.differences else None
    future = heads(hidden, rows, past)
    exists = [steps[:, time - predictions.shape[1] :] >= n for n, predictions in enumerate(future, start=1)]
    if targets is None:
        return future, exists, None, []
    kept = [targets[:, n:].masked_fill(~present, IGNORED) for n, present in enumerate(exists, start=1)]
    states = [output.scaled(predictions).flatten(0, 1) for predictions in (hidden[:, past:], *future)]
    labels = [part.flatten() for part in (targets, *kept)]
    sizes = [len(part) for part in labels]
    exact = {"dtype": torch.promote_types(hidden.dtype, torch.float32), "device": targets.device}
    factors = [torch.full((n,), w, **exact) for n, w in zip(sizes, loss_weights, strict=True)]
    if heads.outputs is None:  # one call for all rows holds one gradient of the shared matrix, not one a head
        joined = torch.cat(states), matrix, torch.cat(labels), torch.cat(factors), bias
        total, losses = weighted_cross_entropy(*joined, label_smoothing=smoothing)
        return future, exists, total, [part.sum() for part in losses.split(sizes)]
    first = states[0], matrix, labels[0], factors[0], bias
    results = [weighted_cross_entropy(*first, label_smoothing=smoothing)]
    for n in range(1, len(states)):
        rows = states[n], labels[n], factors[n]
        results.append(weighted_output_cross_entropy(heads.output(n, output).layer, *rows, label_smoothing=smoothing))
    return future, exists, torch.stack([total for total, _ in results]).sum(), [losses.sum() for _, losses in results]


@torch.no_grad()
def score(
    output: OutputMap,
    hidden: Tensor,
    future: list[Tensor],
    exists: list[Tensor],
    targets: Tensor,
    weights: Sequence[float],
) -> Tensor:
    """Return each row's summed negative log-likelihood under each ensemble weight, (batch, weights)."""
    scores = []
    for weight in weights:
        mixed = mix_predictions(hidden, future, exists, weight) if weight else hidden
        scores.append(output.cross_entropy(mixed, targets).sum(dim=1))
    return torch.stack(scores, dim=1)
