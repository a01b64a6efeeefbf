"""Whether some direction is negative with every hidden state, which is what drives rare words' embeddings there."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.output_reading import output_inputs
from hf_targets.backbones.weight_access import execution_device
from hf_targets.maths.losses import IGNORED

_SOLVED = 3e-8
"""Half the digits of float64: how near to the origin least squares can tell a point from it."""


@dataclass(frozen=True)
class DirectionCertificate:
    """Whether there is a uniformly negative direction, with a proof that one product checks.

    Attributes:
        direction: (d,), of length 1, with a negative product with every hidden state, in their type (float32 or wider)
            and on their device; None if there is none.
        margin: The largest cosine with a hidden state is minus this; no direction has a larger one. It is the distance
            from the origin of the convex hull of the states, each at length 1, and 0 without a direction.
        weights: (states,), at least 0, with sum 1, whose weighted sum of the hidden states is 0 but for rounding; None
            if there is a direction.
    """

    direction: Float[Tensor, "dim"] | None
    margin: float
    weights: Float[Tensor, "states"] | None


def uniformly_negative_direction(hidden_states: Float[Tensor, "states dim"]) -> Float[Tensor, "dim"] | None:
    """Return a direction v with v . h_i < 0 for all hidden states h_i, of length 1; None if there is none.

    There is one exactly if the convex hull of the states does not contain the origin. Of all such directions it is the
    one whose largest cosine with a state is the least.

    Raises: ValueError if there are no states, or a value is NaN or infinite.
    Source: Gao et al. 2019, definition 1 and theorem 2.
    Related: `direction_certificate` gives a proof either way; `softmax_inputs` gives the states of a model.
    """
    return direction_certificate(hidden_states).direction


def direction_certificate(hidden_states: Float[Tensor, "states dim"]) -> DirectionCertificate:
    """Return whether there is a uniformly negative direction, and what proves it; computed in float64.

    The point p of the convex hull of the states u_i, of length 1, that is nearest to the origin minimises
    |sum_i a_i u_i|^2 + (1 - sum_i a_i)^2 over all a_i >= 0, up to a factor. If it is not the origin, -p / |p| is the
    direction: u_i . p >= |p|^2 for all i. If it is, the a_i are the proof. A hull that comes closer to the origin than
    rounding tells (3e-8, or 4 times the precision of the states' type) is taken to contain it.

    Raises: ValueError if there are no states, or a value is NaN or infinite.
    Departs: A linear programme decides it too. Non-negative least squares takes a tenth to a half of its time at 5,000
        states of size 256, and gives the direction of the largest margin.
    """
    hidden_states = torch.as_tensor(hidden_states)
    if hidden_states.dim() != 2 or not hidden_states.numel() or not hidden_states.is_floating_point():
        raise ValueError(
            f"there must be hidden states (states, dim), floats, got {hidden_states.dtype} {tuple(hidden_states.shape)}"
        )
    tolerance = max(_SOLVED, 4 * torch.finfo(hidden_states.dtype).eps)
    like = hidden_states.new_empty(0, dtype=torch.promote_types(hidden_states.dtype, torch.float32))
    states = hidden_states.detach().to("cpu", torch.float64)
    if not torch.isfinite(states).all():
        raise ValueError("hidden states must be finite, got NaN or infinity")
    lengths = torch.linalg.vector_norm(states, dim=1)
    if not lengths.all():  # the origin is one of them
        proof = torch.nn.functional.one_hot(lengths.argmin(), len(states))
        return DirectionCertificate(None, 0.0, proof.to(like))
    units = states / lengths[:, None]
    shares = _nearest_point(units)
    nearest = shares @ units
    distance = torch.linalg.vector_norm(nearest)
    direction = -nearest / distance
    margin = -(units @ direction).max().item()
    if not (distance > tolerance and margin > 0):
        weights = shares / lengths
        return DirectionCertificate(None, 0.0, (weights / weights.sum()).to(like))
    return DirectionCertificate(direction.to(like), margin, None)


def _nearest_point(units: Tensor) -> Tensor:
    """Return weights (states,) of sum 1 whose mean of the states is the hull's nearest point to the origin."""
    from scipy.optimize import nnls  # takes a second to import

    system = np.vstack([units.T.numpy(), np.ones((1, len(units)))])
    goal = np.zeros(len(system))
    goal[-1] = 1.0
    shares = torch.from_numpy(nnls(system, goal, maxiter=max(1000, 10 * len(units)))[0])
    return shares / shares.sum()


@torch.no_grad()
def softmax_inputs(
    model: PreTrainedModel, batches: Iterable[dict[str, Tensor]], num_states: int
) -> Float[Tensor, "states dim"]:
    """Return what the output embeddings read at the first positions of a text that are not padding, in float32.

    Args:
        model: A causal or masked model, or one with an encoder; its mode is left as it was.
        batches: With `input_ids` (batch, time), and what else the model reads, such as `attention_mask`. For a model
            with an encoder also `labels` (batch, time), -100 at padding: the states are those that predict them.
        num_states: How many to return, fewer if the text is shorter.
    Raises: ValueError if there is no text, the model has no output embeddings, or a batch lacks the labels.
    """
    seen: list[Tensor] = []
    device = execution_device(model)
    with output_inputs(model, with_encoder=True) as read, without_dropout(model):
        for batch in batches:
            if model.config.is_encoder_decoder and "labels" not in batch:
                raise ValueError(
                    f"a model with an encoder also reads labels, got {sorted(batch)}; add the target's ids"
                )
            read.clear()
            model(**{name: tensor.to(device) for name, tensor in batch.items()})
            mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
            kept = (batch["labels"] != IGNORED if model.config.is_encoder_decoder else mask).flatten()
            seen.append(read[0].flatten(0, -2)[kept.to(read[0].device)].float().cpu())
            if sum(map(len, seen)) >= num_states:
                break
    if not seen:
        raise ValueError("there must be a text to read, got no batch; give a longer one")
    return torch.cat(seen)[:num_states]
