"""The new layers of RETRO: an encoder of neighbours, and cross-attention from chunks of the text to them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import gcd
from typing import Any

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


class NeighborEncoder(nn.Module):
    """A Transformer that reads neighbours from both sides, and in each layer the states of the chunk they are for.

    Source: Borgeaud et al. 2022, section 2.4.
    Departs: positions are embeddings, not relative distances; the layers are those of torch, as wide as the model's.
    """

    def __init__(self, config: Any, embedding_width: int) -> None:
        super().__init__()
        width, heads = config.hidden_size, gcd(config.hidden_size, config.num_attention_heads)
        self.tokens, self.positions = nn.Linear(embedding_width, width), nn.Embedding(config.neighbor_length, width)
        options: dict[str, Any] = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        layer = nn.TransformerDecoderLayer(width, heads, 4 * width, **options)
        self.layers = nn.TransformerDecoder(layer, config.num_encoder_layers, nn.RMSNorm(width, eps=1e-6))
        self.norm = nn.RMSNorm(width, eps=1e-6)

    def forward(self, embeds: Tensor, keep: Tensor, states: Tensor) -> Tensor:
        """Return what was read (neighbours, length, d), from embeddings of that shape and states (neighbours, m, d)."""
        hidden = self.tokens(embeds) + self.positions(torch.arange(embeds.shape[1], device=embeds.device))
        padding = ~torch.cat([torch.ones_like(keep[:, :1]), keep[:, 1:]], dim=1)  # a softmax over no key is NaN
        return self.layers(hidden, self.norm(states), tgt_key_padding_mask=padding)


class ChunkCrossAttention(nn.Module):
    """Attention of positions to the neighbours of one chunk each; it adds nothing before it is trained.

    Departs: it has embeddings of the offset in the chunk in place of relative distances, and follows a whole layer of
        Transformers in place of standing between its attention and its feed-forward part.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, self.num_heads = config.hidden_size, gcd(config.hidden_size, config.num_attention_heads)
        self.norm, self.offsets = nn.RMSNorm(width, eps=1e-6), nn.Embedding(config.chunk_length, width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.output = ZeroInitLinear(width, width, bias=False)

    def keys_and_values(self, encoded: Tensor) -> list[Tensor]:
        """Return keys and values (batch, heads, tokens, -1) of encoded neighbours (batch, tokens, d)."""
        return [self._heads(part(encoded)) for part in (self.key, self.value)]

    def forward(self, hidden: Tensor, offsets: Tensor, keys: Tensor, values: Tensor, allowed: Tensor) -> Tensor:
        """Return what is to be added to hidden states (batch, time, d): 0 where nothing is allowed."""
        query = self._heads(self.query(self.norm(hidden) + self.offsets(offsets)))
        reads = allowed.any(dim=-1, keepdim=True)
        mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=(allowed | ~reads)[:, None])
        return self.output(mixed.transpose(1, 2).flatten(2)).masked_fill(~reads, 0.0)

    def _heads(self, states: Tensor) -> Tensor:
        return states.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


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
        """Return the states (batch, time, d) after a chosen layer, the `number`-th from 0, with what neighbours add."""
        if number == 0:
            self._encode(hidden, reading, embed)
        if reading.allowed is None:
            return hidden
        keys, values = reading.pairs[2 * number : 2 * number + 2]
        return hidden + self.cross[number](hidden, reading.offsets, keys, values, reading.allowed)

    def _encode(self, hidden: Tensor, reading: Reading, embed: Callable[[Tensor], Tensor]) -> None:
        """Let the encoder read the neighbours that positions of this call read."""
        memory, size, (batch, time) = reading.memory, self.chunk_length, hidden.shape[:2]
        states = hidden if memory is None else memory.extend(hidden)
        num_before = (reading.mask.cumsum(dim=1) == 0).sum(dim=1, keepdim=True)  # padding on the left
        count = torch.arange(states.shape[1], device=hidden.device)
        steps = torch.where(reading.mask[:, -time:], count[-time:] + 1 - num_before, 0)
        own = steps // size - 1  # the chunk whose neighbours each position reads; -1: none
        num_chunks, k, length = reading.ids.shape[1:]
        if not num_chunks or not (own >= 0).any():
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
            embeds, conditions = embed(read[1].flatten(0, 2)), read[0].flatten(0, 1).repeat_interleave(k, dim=0)
            encoded = self.encoder(embeds, keep.flatten(0, 2), conditions).reshape(batch, -1, hidden.shape[2])
            reading.pairs = [part for cross in self.cross for part in cross.keys_and_values(encoded)]
            if memory is not None:
                memory.held = read, reading.pairs
        reading.offsets, allowed = steps % size, own[:, :, None] == chunks[:, None]
        reading.allowed = allowed.repeat_interleave(k * length, dim=2) & keep.flatten(1)[:, None]
