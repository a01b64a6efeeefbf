"""Transformers' Reformer, made to read the same text in the same way: fixed hashes, any length, each row by itself."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, ReformerConfig
from transformers.models.reformer.modeling_reformer import ReformerEncoderOutput, ReformerModelOutput

from hf_targets.backbones.reformer.rows import ChunkRule, row_groups

_NOT_READ = ("position_ids", "past_key_values", "next_sequence_length", "use_cache", "is_first_iteration")


def repair_reformer(model: PreTrainedModel) -> PreTrainedModel:
    """Give every Reformer in a model fixed hashes, texts of any length, and right generation; return the model.

    Models and Trainers of this library do this; call it on a `ReformerModelWithLMHead` that is used without them. It
    replaces methods of this instance only, and may be called twice.

    - Hashes. In evaluation their seeds are `config.hash_seed`, or the index of each layer if it is None; training
      draws them from the global generator. `num_hashes` may be passed to a call. A missing `config.num_buckets` is set
      by the number of positions; Transformers sets it by the first text that is read.
    - Lengths. Rows are moved to the left, padded to a multiple of the chunk lengths (in training with axial positions,
      to all of them) and read in groups of one padded length, so that a row is read as it would be alone.
    - Generation reads the whole text at each step. Transformers' cache is refused: its hash layers read the first row
      for all rows, and other positions than without a cache.
    - Gradients. Each layer is computed again in the backward pass (`torch.utils.checkpoint`), which holds its input;
      Transformers computes that input too, backwards, and for it seeds the global generator from the clock, and trains
      wrongly with frozen embeddings, in evaluation mode, under autocast, with dropout, and after several forward
      passes. The output bias, which Transformers never adds, is frozen.
    - Several processes with sharded weights need rows of one padded length.

    Layers with hashes are not strictly causal: they cut chunks from a sorted list of all tokens, so later tokens decide
    which of the earlier ones a position reads. Layers with `local` attention are.

    Source: Kitaev et al., "Reformer: The Efficient Transformer"; transformers 5.23.
    """
    module: Any
    for module in model.modules():
        config = getattr(module, "config", None)
        if not isinstance(config, ReformerConfig):
            continue
        if hasattr(module, "lm_head") and hasattr(module, "reformer"):
            module.prepare_inputs_for_generation = partial(_inputs_of_step, module)
            module.lm_head.bias.requires_grad_(False)  # no gradient reaches it, for which DDP would wait
        if hasattr(module, "encoder") and hasattr(module, "embeddings") and not hasattr(module, "is_repaired"):
            module.is_repaired = True
            _set_num_buckets(module, config)
            module.forward = partial(_read, module.forward, module)
            module.encoder.forward = partial(_read_layers, module.encoder)
            for index, layer in enumerate(module.encoder.layers):
                _repair_layer(layer, index)
    return model


def _set_num_buckets(reformer: Any, config: Any) -> None:
    """Set a missing number of buckets as Transformers would for the longest text, in one or two factors."""
    if config.num_buckets is not None or "lsh" not in config.attn_layers:
        return
    chunk = config.lsh_attn_chunk_length
    longest = ChunkRule.of(config, training=False).longest
    power = (2 * max(longest // chunk, 1)).bit_length() - 1
    is_large = 2**power > 2 * max(math.isqrt(config.max_position_embeddings // chunk), chunk)
    config.num_buckets = [2 ** (power // 2), 2 ** (power - power // 2)] if is_large else 2**power
    for layer in reformer.encoder.layers:
        layer.attention.self_attention.num_buckets = config.num_buckets


class _DrawsFrom(TorchFunctionMode):
    """Inside, `torch.randn` of this thread draws from a generator."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        drawn = {"generator": self.generator} if func is torch.randn else {}
        return func(*args, **(kwargs or {}), **drawn)


def _repair_layer(layer: Any, index: int) -> None:
    layer.forward = partial(_read_layer, layer)
    attention = layer.attention.self_attention
    if hasattr(attention, "_hash_vectors"):
        attention._hash_vectors = partial(_hash, attention._hash_vectors, attention, index, attention.hash_seed)
        attention.hash_seed = None  # with it, Transformers sets the global seed


def _hash(
    hash_vectors: Callable[..., Tensor], attention: Any, index: int, seed: int | None, vectors: Tensor, *args: Any
) -> Tensor:
    if seed is None and attention.training:
        return hash_vectors(vectors, *args)
    with _DrawsFrom(torch.Generator(vectors.device).manual_seed(index if seed is None else seed)):
        return hash_vectors(vectors, *args)


def _read_layer(
    layer: Any, attended: Tensor, hidden: Tensor, mask: Tensor, num_hashes: int | None, attentions: bool
) -> tuple[Tensor, Tensor, Any]:
    """Return both streams (batch, time, d) of a reversible layer, and its attention weights."""
    found = layer.attention(hidden, attention_mask=mask, num_hashes=num_hashes, output_attentions=attentions)
    attended = attended + found.hidden_states
    return attended, hidden + layer.feed_forward(attended), found.attention_probs


def _read_layers(
    encoder: Any,
    hidden_states: Tensor,
    attention_mask: Tensor,
    num_hashes: int | None,
    *,
    output_hidden_states: bool,
    output_attentions: bool,
    **_: Any,
) -> ReformerEncoderOutput:
    """Read embeddings (batch, time, d) as `ReformerEncoder.forward` does, with gradients of autograd."""
    attended, hidden, read, attentions = hidden_states, hidden_states, [hidden_states], []
    for layer in encoder.layers:
        call = (attended, hidden, attention_mask, num_hashes, output_attentions)
        attended, hidden, weights = checkpoint(layer, *call, use_reentrant=False)
        if output_hidden_states:
            read.append(hidden)
        if output_attentions:
            attentions.append(weights)
    outputs = encoder.layer_norm(torch.cat([attended, hidden], dim=-1))
    outputs = F.dropout(outputs, encoder.dropout, encoder.training)
    return ReformerEncoderOutput(outputs, read, attentions, None)


def _read(
    forward: Callable[..., Any],
    reformer: Any,
    input_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
    num_hashes: int | None = None,
    past_buckets_states: Any = None,
    use_cache: bool | None = None,
    output_hidden_states: bool | None = None,
    output_attentions: bool | None = None,
    return_dict: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Read a batch as `ReformerModel.forward` does, each group of rows by itself."""
    config, training = reformer.config, reformer.training
    if past_buckets_states is not None:
        raise ValueError(
            "Reformer's cache reads other positions than a call without it; leave out past_buckets_states and give the "
            "whole text"
        )
    given = {"input_ids": input_ids, "position_ids": position_ids, "inputs_embeds": inputs_embeds}
    given = {name: value for name, value in given.items() if value is not None}
    text: Any = given.get("inputs_embeds", input_ids)
    if position_ids is not None:
        given["position_ids"] = position_ids.expand(text.shape[:2])
    groups = list(row_groups(attention_mask, text, ChunkRule.of(config, training=training)))
    attentions = config.output_attentions if output_attentions is None else output_attentions
    keep = groups[0].keep
    if attentions and not (keep.shape == text.shape[:2] and keep.all()):
        raise ValueError(
            "output_attentions of a Reformer are those of chunks: give rows of one length, a multiple of the chunk "
            "lengths, or leave it out"
        )
    merged: list[Tensor] = []
    for group in groups:
        part = forward(  # a row of zeros stands for padding, which nothing attends to
            **{name: group.take(value) for name, value in given.items()},
            attention_mask=group.keep.long(),
            num_hashes=num_hashes,
            use_cache=False,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            return_dict=True,
            **kwargs,
        )
        states = [part.last_hidden_state, *(part.hidden_states or ())]
        merged = merged or [rows.new_zeros(*text.shape[:2], rows.shape[-1]) for rows in states]
        merged = [group.put(batch, rows) for batch, rows in zip(merged, states, strict=True)]
    hidden_states: Any = tuple(merged[1:]) or None
    outputs = ReformerModelOutput(merged[0], hidden_states=hidden_states, attentions=part.attentions)
    wants_dict = config.return_dict if return_dict is None else return_dict
    return outputs if wants_dict else outputs.to_tuple()


def _inputs_of_step(
    model: Any, input_ids: Tensor, attention_mask: Tensor | None = None, num_hashes: int | None = None, **kwargs: Any
) -> dict[str, Any]:
    """Return the inputs of a step of `generate`: the whole text with its mask, which Transformers leaves out."""
    others = {name: value for name, value in kwargs.items() if name not in _NOT_READ and value is not None}
    return {"input_ids": input_ids, "attention_mask": attention_mask, "num_hashes": num_hashes, **others}
