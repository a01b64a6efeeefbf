"""The new layers of RETRO: an encoder of neighbours, and cross-attention from chunks of the text to them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import gcd
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.cache_utils import DynamicLayer

from hf_targets.backbones.new_parts import ZeroInitLinear


class RetroMemory(DynamicLayer):
    """A layer of the key-value cache whose keys are the states (batch, 1, time, d) that condition the encoder."""

    held: tuple[list[Tensor], list[Tensor]] | None = None
    """What the encoder has read in the last call, and the keys and values of it; None: nothing."""

    def extend(self, hidden: Tensor) -> Tensor:
        """Append states (batch, time, d), and return all."""
        return self.update(hidden[:, None], hidden[:, None, :, :0])[0][:, 0]


@dataclass
class Reading:
    """What a call reads beside the text: neighbours (batch, chunks, k, length), and which of their tokens there are."""

    owner: nn.Module
    ids: Tensor
    keep: Tensor
    mask: Tensor  # (batch, cached and new time), False at padding
    memory: RetroMemory | None
    offsets: Tensor = field(init=False)  # (batch, time), from the last token of the chunk whose neighbours are read
    allowed: Tensor | None = None  # (batch, time, tokens of neighbours), which of them are read; None: none
    pairs: list[Tensor] = field(default_factory=list)  # their keys and values in each layer, (batch, heads, tokens, -1)


class Attention(nn.Module):
    """Attention of states to keys and values that are made of other states; not torch's, which cannot be offloaded."""

    def __init__(self, config: Any, last_layer: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        width, self.num_heads = config.hidden_size, gcd(config.hidden_size, config.num_attention_heads)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.output = last_layer(width, width, bias=False)

    def pairs(self, states: Tensor) -> list[Tensor]:
        """Return keys and values (batch, heads, tokens, -1) of states (batch, tokens, d)."""
        return [self._heads(part(states)) for part in (self.key, self.value)]

    def forward(self, states: Tensor, keys: Tensor, values: Tensor, allowed: Tensor) -> Tensor:
        """Return what states (batch, time, d) read where (batch, time or 1, tokens) it is allowed; 0 of no token."""
        reads = allowed.any(dim=-1, keepdim=True)  # a softmax over no key is NaN
        query = self._heads(self.query(states))
        mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=(allowed | ~reads)[:, None])
        return self.output(mixed.transpose(1, 2).flatten(2)).masked_fill(~reads, 0.0)

    def _heads(self, states: Tensor) -> Tensor:
        return states.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class NeighborEncoderLayer(nn.Module):
    """Attention to the neighbour from both sides, attention to the states of the chunk it is for, and two linear maps.

    Source: Borgeaud et al. 2022, section 2.4.
    Departs: it is as wide as the model, and positions are embeddings in place of relative distances.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(3))
        self.own, self.chunk = Attention(config), Attention(config)
        self.linear = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor, keep: Tensor, states: Tensor) -> Tensor:
        """Return neighbours (number, length, d), False in `keep` at padding, that have read states (number, m, d)."""
        normed = self.norms[0](hidden)
        hidden = hidden + self.own(normed, *self.own.pairs(normed), keep[:, None])
        everything = torch.ones_like(states[:, None, :, 0], dtype=torch.bool)
        hidden = hidden + self.chunk(self.norms[1](hidden), *self.chunk.pairs(states), everything)
        return hidden + self.linear(self.norms[2](hidden))


class NeighborEncoder(nn.Module):
    """A Transformer that reads neighbours, and the states of the chunks they are for."""

    def __init__(self, config: Any, embedding_width: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.tokens, self.positions = nn.Linear(embedding_width, width), nn.Embedding(config.neighbor_length, width)
        self.layers = nn.ModuleList(NeighborEncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(2))

    def forward(self, embeds: Tensor, keep: Tensor, states: Tensor) -> Tensor:
        """Return what was read (number, length, d), from embeddings of that shape and states (number, m, d)."""
        hidden, states = self.tokens(embeds), self.norms[0](states)
        hidden = hidden + self.positions(torch.arange(embeds.shape[1], device=embeds.device))
        for layer in self.layers:
            hidden = layer(hidden, keep, states)
        return self.norms[1](hidden)


class ChunkCrossAttention(Attention):
    """Attention of positions to the neighbours of one chunk each; it adds nothing before it is trained.

    Departs: it has embeddings of the offset in the chunk in place of relative distances, and follows a whole layer of
        Transformers in place of standing between its attention and its feed-forward part.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config, ZeroInitLinear)
        self.norm = nn.RMSNorm(config.hidden_size, eps=1e-6)
        self.offsets = nn.Embedding(config.chunk_length, config.hidden_size)

    def forward(self, hidden: Tensor, keys: Tensor, values: Tensor, allowed: Tensor, offsets: Tensor) -> Tensor:
        """Return what is added to states (batch, time, d); `offsets` (batch, time) count from a chunk's last token."""
        return super().forward(self.norm(hidden) + self.offsets(offsets), keys, values, allowed)


class RetroLayers(nn.Module):
    """The encoder, and the cross-attention after each chosen layer.

    Position i, counted from the row's first token, reads the neighbours of chunk (i + 1) // m - 1: so do the last token
    of that chunk and the first m - 1 of the next one.
    """

    def __init__(self, config: Any, embedding_width: int) -> None:
        super().__init__()
        self.chunk_length, self.encoder = config.chunk_length, NeighborEncoder(config, embedding_width)
        self.cross = nn.ModuleList(ChunkCrossAttention(config) for _ in config.layers)

    def forward(self, number: int, hidden: Tensor, reading: Reading, embed: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the states (batch, time, d) after a chosen layer, the `number`-th from 0, with what neighbours add.

        The layers may have another type than the states, as when they are trained in float32 on a bfloat16 model.
        """
        states = hidden.to(self.encoder.tokens.weight.dtype)
        if number == 0:
            self._encode(states, reading, embed)
        if reading.allowed is None:
            return hidden
        keys, values = reading.pairs[2 * number : 2 * number + 2]
        return hidden + self.cross[number](states, keys, values, reading.allowed, reading.offsets).to(hidden.dtype)

    def _encode(self, hidden: Tensor, reading: Reading, embed: Callable[[Tensor], Tensor]) -> None:
        """Let the encoder read the neighbours that positions of this call read."""
        memory, size, (batch, time) = reading.memory, self.chunk_length, hidden.shape[:2]
        reading.ids, reading.keep, reading.mask = (
            part.to(hidden.device) for part in (reading.ids, reading.keep, reading.mask)
        )
        states = hidden if memory is None else memory.extend(hidden)
        num_before = (reading.mask.cumsum(dim=1) == 0).sum(dim=1, keepdim=True)  # padding on the left
        count = torch.arange(states.shape[1], device=hidden.device)
        steps = torch.where(reading.mask[:, -time:], count[-time:] + 1 - num_before, 0)
        own = steps // size - 1  # the chunk whose neighbours each position reads; -1: none
        num_chunks, k, length = reading.ids.shape[1:]
        if not num_chunks or not (self.training or (own >= 0).any()):  # in training each parameter has a gradient
            return
        first = ((states.shape[1] - time + 1 - num_before) // size - 1).clamp(min=0)
        chunks = first + count[: min(num_chunks, (time + size - 2) // size + 1)]  # (batch, chunks that are read)
        is_read = (chunks < num_chunks) & (chunks <= own.amax(dim=1, keepdim=True))
        rows, at = torch.arange(batch, device=hidden.device)[:, None], chunks.clamp(max=num_chunks - 1)
        columns = (num_before + chunks * size)[..., None] + torch.arange(size, device=hidden.device)
        of_chunks = states[rows[..., None], columns.clamp(max=states.shape[1] - 1)]
        keep = reading.keep[rows, at] & is_read[..., None, None]
        read = [of_chunks.masked_fill(~is_read[..., None, None], 0.0), reading.ids[rows, at], keep]
        if memory is not None and memory.held is not None and all(map(torch.equal, memory.held[0], read)):
            reading.pairs = memory.held[1]
        else:
            embeds = embed(read[1].flatten(0, 2)).to(hidden)
            conditions = read[0].flatten(0, 1).repeat_interleave(k, dim=0)
            encoded = self.encoder(embeds, keep.flatten(0, 2), conditions).reshape(batch, -1, hidden.shape[2])
            reading.pairs = [part for cross in self.cross for part in cast(Attention, cross).pairs(encoded)]
            if memory is not None:
                memory.held = read, reading.pairs
        reading.offsets, allowed = steps % size, own[:, :, None] == chunks[:, None]
        reading.allowed = allowed.repeat_interleave(k * length, dim=2) & keep.flatten(1)[:, None]
