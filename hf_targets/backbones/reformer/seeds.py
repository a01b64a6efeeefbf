"""Seeds of a Reformer's hashes and dropout: hashes are fixed in evaluation, and the global generator is left alone."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_SEEDS = "reformer_seeds"
"""Attribute of the attention mask of a call, which Transformers keeps from the forward pass to the backward pass."""


class _DrawsFrom(TorchFunctionMode):
    """Inside, `torch.randn` of this thread draws from a generator."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.randn:
            kwargs = {**kwargs, "generator": self.generator}
        return func(*args, **kwargs)


def seed_layer(layer: Any, index: int) -> None:
    """Make a `ReformerLayer` draw its hashes from a seed of their own, and its dropout anew from the global seed.

    Transformers' layer resets the global generator from the clock in each forward pass in training; keeps the seeds of
    the last forward pass only; and recomputes a layer with hashes with another dropout than it had in the forward pass.
    Its backward pass also leaves autocast out and refuses evaluation mode.
    """
    layer._init_attention_seed = partial(_draw_seed, layer, "attention_seed")
    layer._init_feed_forward_seed = partial(_draw_seed, layer, "feed_forward_seed")
    layer.forward = partial(_forward, layer.forward, layer, index)
    layer.backward_pass = partial(_backward, layer.backward_pass, layer, index)
    attention = layer.attention.self_attention
    if hasattr(attention, "_hash_vectors"):
        attention._hash_vectors = partial(_hash, attention._hash_vectors, layer, index, attention.hash_seed)
        attention.hash_seed = None  # with it, Transformers sets the global seed


def is_seeded(layer: Any) -> bool:
    """Return whether `seed_layer` has been called on a layer."""
    return "backward_pass" in vars(layer)


@contextmanager
def own_draws(device: torch.device, *, training: bool) -> Iterator[None]:
    """Inside, a training pass draws from a seed that was drawn from the global generator, which then goes on."""
    if not training:
        yield
        return
    seed = _draw()
    with _forked(device):
        torch.manual_seed(seed)
        yield


def mask_of_call(keep: Tensor, *, training: bool) -> Tensor | None:
    """Return a new mask for a call, which will hold the call's seeds; None if nothing is masked or needs seeds."""
    if not training and not torch.is_grad_enabled() and bool(keep.all()):
        return None
    mask = keep.long()
    setattr(mask, _SEEDS, {})
    return mask


def _draw() -> int:
    return int(torch.randint(2**62, (), device="cpu"))


def _draw_seed(layer: Any, name: str) -> None:
    seed = _draw()
    setattr(layer, name, seed)
    torch.manual_seed(seed)


def _forked(device: torch.device) -> Any:
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def _hash(
    hash_vectors: Callable[..., Tensor],
    layer: Any,
    index: int,
    seed: int | None,
    vectors: Tensor,
    *args: Any,
    **kw: Any,
) -> Tensor:
    drawn: int = layer.attention_seed if layer.training else index
    with _DrawsFrom(torch.Generator(vectors.device).manual_seed(drawn if seed is None else seed)):
        return hash_vectors(vectors, *args, **kw)


def _forward(forward: Callable[..., Any], layer: Any, index: int, *args: Any, **kwargs: Any) -> Any:
    outputs = forward(*args, **kwargs)
    seeds = getattr(kwargs.get("attention_mask"), _SEEDS, None)
    if seeds is not None:
        device = outputs.hidden_states.device.type
        cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        seeds[index] = (layer.training, layer.attention_seed, layer.feed_forward_seed, cast)
    return outputs


def _backward(backward: Callable[..., Any], layer: Any, index: int, *args: Any, **kwargs: Any) -> Any:
    training, attention_seed, feed_forward_seed, cast = getattr(kwargs["attention_mask"], _SEEDS)[index]
    if training != layer.training:
        raise ValueError(
            "the mode of a Reformer changed between forward and backward pass; call train() or eval() before both"
        )
    device = kwargs["hidden_states"].device
    autocast = contextlib.nullcontext() if cast is None else torch.autocast(device.type, dtype=cast)
    layer.attention_seed, layer.feed_forward_seed = attention_seed or 0, feed_forward_seed or 0
    layer.training = True  # its backward pass demands it; its parts stay in their mode
    try:
        with _forked(device), autocast:
            return backward(*args, **kwargs)
    finally:
        layer.training = training
