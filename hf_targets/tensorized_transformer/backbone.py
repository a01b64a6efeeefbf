"""The layers of a Tensorized Transformer without its output matrix: from token ids to hidden states."""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import can_return_tuple

from hf_targets.backbones.checkpoint import StrictLoading
from hf_targets.backbones.inputs import can_look, check_row_mask, check_text
from hf_targets.backbones.recorded_states import Wanted
from hf_targets.backbones.weight_access import num_rows
from hf_targets.tensorized_transformer.attention import TensorizedAttention, TensorizedLayer, position_encodings
from hf_targets.tensorized_transformer.configuration import TensorizedTransformerConfig


class TensorizedTransformerPreTrainedModel(StrictLoading, PreTrainedModel):
    """What the model and the layers without its output matrix share."""

    config_class = TensorizedTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["TensorizedLayer"]  # noqa: RUF012, as the base class has it

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise normally, as the published program does, and the core uniformly in [0, 1), as the paper does."""
        spread = cast(TensorizedTransformerConfig, self.config).initializer_range
        if isinstance(module, nn.Linear | nn.Embedding):
            init.normal_(module.weight, 0.0, spread)
            if isinstance(module, nn.Linear) and module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            init.normal_(module.weight, 1.0, spread)
            init.zeros_(module.bias)
        elif isinstance(module, TensorizedAttention):
            # Departs: the program takes the softmax of memory that it does not initialise; ours is uniform
            init.uniform_(module.core, 0.0, 1.0)
        elif isinstance(module, TensorizedTransformerModel):
            init.normal_(module.content_bias, 0.0, spread)
            init.normal_(module.position_bias, 0.0, spread)


class TensorizedTransformerModel(TensorizedTransformerPreTrainedModel):
    """The embeddings and layers of `TensorizedTransformerForCausalLM`; `AutoModel` loads this.

    Source: Ma et al., "A Tensorized Transformer for Language Modeling"; szhangtju/The-compression-of-Transformer.
    """

    _keys_to_ignore_on_load_unexpected = [r"^lm_head\."]  # noqa: RUF012, as the base class has it

    def __init__(self, config: TensorizedTransformerConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.content_bias = nn.Parameter(torch.empty(config.head_dim))
        self.position_bias = nn.Parameter(torch.empty(config.head_dim))
        self.layers = nn.ModuleList(TensorizedLayer(config, index) for index in range(config.num_hidden_layers))
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        *,
        token_type_ids: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> BaseModelOutputWithPast:
        """Return the hidden states (batch, time, d) of a text.

        Args:
            attention_mask: (batch, time), or (batch, positions in the cache + time); 0 at padding, which is not read.
            position_ids: (batch, time). Wherever they do not go up by one, as in packed rows, a new text begins, which
                does not read the one before. They have no other effect: attention depends on distances.
            past_key_values: Keys and values of earlier calls, a `DynamicCache`.
            inputs_embeds: (batch, time, d), in place of what the embedding of `input_ids` gives.
            output_hidden_states: Whether to return what each layer reads, and the last hidden state.
            output_attentions: Has no effect: there are no attention weights.
            others: As for `CausalHead`.
        Raises:
            ValueError: If shapes do not fit, an id is outside the vocabulary, the cache is of another kind, or with
                `paper_leaky` a text does not fill its segments, has padding before it, or there is a cache.
        """
        config = cast(TensorizedTransformerConfig, self.config)
        cache = self._cache_of(past_key_values, use_cache)
        given = input_ids, inputs_embeds, attention_mask, position_ids, token_type_ids
        text = check_text(*given, num_rows(self.embed_tokens), config.hidden_size, cache=cache)
        reach = self._reach_of(text, attention_mask, position_ids, cache)
        embeds = text if input_ids is None else self.embed_tokens(input_ids)
        hidden = self.dropout(embeds * math.sqrt(config.hidden_size))
        positions = self.dropout(position_encodings(config.segment_length, config.hidden_size, hidden))
        wanted, read = Wanted.of(config, output_hidden_states, None).hidden_states, []
        for layer in self.layers[: config.num_hidden_layers]:  # fewer where `generate` drafts with the first layers
            read.append(hidden)
            hidden = layer(hidden, positions, self.content_bias, self.position_bias, reach, past_key_values=cache)
        hidden = self.dropout(hidden)
        return BaseModelOutputWithPast(
            last_hidden_state=hidden,
            past_key_values=cache,
            hidden_states=(*read, hidden) if wanted else None,
        )

    def _reach_of(
        self, text: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, cache: Cache | None
    ) -> Tensor:
        """Return what is read of each window, (1 or batch, time, S), or with `paper_leaky` of the text."""
        config, time = cast(TensorizedTransformerConfig, self.config), text.shape[1]
        check_row_mask(attention_mask)
        if not config.paper_leaky:
            num_cached = 0 if cache is None else cache.get_seq_length()
            return reach_of(text, config.segment_length, num_cached, attention_mask, position_ids)
        check_segments_of(text, config.segment_length, attention_mask, position_ids)
        if attention_mask is None:
            return torch.ones(1, time, dtype=torch.bool, device=text.device)
        return attention_mask != 0

    def _cache_of(self, past_key_values: Cache | None, use_cache: bool | None) -> Cache | None:
        """Return the cache to read and fill: the given one, or a new one if it is wanted; None: none."""
        config = cast(TensorizedTransformerConfig, self.config)
        past = past_key_values
        # Transformers' property for this has another name before 5.23.
        checkpointing = self.training and any(
            getattr(layer, "gradient_checkpointing", False) for layer in self.modules()
        )
        if past is None:
            wanted = config.use_cache if use_cache is None else use_cache
            return DynamicCache(config=config) if wanted and not config.paper_leaky and not checkpointing else None
        if not isinstance(past, DynamicCache):
            raise ValueError(f"past_key_values must be a DynamicCache, got a {type(past).__name__}")
        if checkpointing:  # not even an empty one, which `generate` expects to be filled
            raise ValueError("gradient checkpointing in training takes no cache; call model.eval() to generate")
        if config.paper_leaky:
            if past.get_seq_length():
                raise ValueError("paper_leaky=True takes no cache of earlier positions; leave out past_key_values")
            return None
        return past


def reach_of(
    text: Tensor, size: int, num_cached: int, attention_mask: Tensor | None, position_ids: Tensor | None
) -> Tensor:
    """Return which positions of its window each position reads, (1 or batch, time, size); the last is the position.

    Padding is not read, nor is what lies before the first position, nor another text of a packed row.

    Args:
        text: (batch, time) or (batch, time, d).
        num_cached: Number of positions before the text that a cache holds.
        attention_mask: (batch, num_cached + time), 0 at padding.
        position_ids: (batch, time) or (1, time). A text begins wherever they do not go up by one.
    """
    time, device = text.shape[1], text.device
    length = size - 1 + time
    keep = (torch.arange(length, device=device) >= size - 1 - num_cached)[None]
    if attention_mask is not None:
        given = attention_mask[:, -length:].to(device) != 0
        keep = keep & F.pad(given, (length - given.shape[1], 0))
    reach = keep.unfold(1, size, 1)
    if position_ids is None or time == 1:  # a step of generation continues its text
        return reach
    texts = texts_of(*(part.expand(text.shape[0], -1) for part in (keep[:, size - 1 :], position_ids)))
    return reach & (F.pad(texts, (size - 1, 0)).unfold(1, size, 1) == texts[..., None])


def texts_of(keep: Tensor, position_ids: Tensor) -> Tensor:
    """Return the number of the text to which each position of a row belongs, (batch, time), counted from 0.

    A text begins wherever the positions do not go up by one from those of the token before. Padding is passed over.

    Args:
        keep: (batch, time), true at text, false at padding.
        position_ids: (batch, time).
    """
    number = keep.cumsum(dim=1)  # of tokens so far; ONNX has no `cummax` of their indices
    places = torch.where(keep, number, keep.shape[1] + 1)
    of_tokens = F.pad(torch.zeros_like(position_ids), (1, 1)).scatter(1, places, position_ids)
    before = number - keep.long()
    follows = position_ids == of_tokens.gather(1, before) + 1
    return (keep & (before > 0) & ~follows).cumsum(dim=1)


def check_segments_of(text: Tensor, size: int, attention_mask: Tensor | None, position_ids: Tensor | None) -> None:
    """Raise a ValueError if a text does not fill segments, each from its beginning, or one has two texts in it."""
    time = text.shape[1]
    if time % size:
        raise ValueError(
            f"with paper_leaky=True a text has a multiple of segment_length={size} tokens, got {time}; choose such a "
            "block_size, or pad the text on the right and mask the padding"
        )
    keep = torch.ones(text.shape[:2], dtype=torch.bool, device=text.device)
    if attention_mask is not None:
        keep = (attention_mask != 0).expand_as(keep)
    segments = keep.unflatten(1, (-1, size))
    if can_look(keep) and (segments[..., 1:] & ~segments[..., :-1]).any():
        raise ValueError("attention_mask has padding before text in a segment of paper_leaky=True; pad on the right")
    if position_ids is not None and can_look(position_ids):
        texts = texts_of(keep, position_ids.expand_as(keep)).unflatten(1, (-1, size))
        if (texts[..., 0] != texts[..., -1]).any():
            raise ValueError("position_ids restart inside a segment of paper_leaky=True; leave them out")
