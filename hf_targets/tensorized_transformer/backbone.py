"""The layers of a Tensorized Transformer without its output matrix: from token ids to hidden states."""

import math
from typing import cast

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import can_return_tuple

from hf_targets.backbones.checkpoint import StrictLoading
from hf_targets.backbones.inputs import check_attention_mask, check_embeddable, check_segments, check_shapes
from hf_targets.backbones.recorded_states import Wanted
from hf_targets.backbones.weight_access import num_rows
from hf_targets.tensorized_transformer.attention import TensorizedAttention
from hf_targets.tensorized_transformer.configuration import TensorizedTransformerConfig
from hf_targets.tensorized_transformer.layers import TensorizedLayer, position_encodings
from hf_targets.tensorized_transformer.reach import check_segments_of, reach_of


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
            # Departs: the program takes the softmax of memory that it does not initialise
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
        """Return the hidden states of a text.

        Args:
            input_ids: (batch, time).
            attention_mask: (batch, time), or (batch, positions in the cache + time); 0 at padding, which is not read.
            position_ids: (batch, time). Wherever they do not go up by one, as in packed rows, a new text begins, which
                does not read the one before. With a cache the first of them go on with the text that is in it. They
                have no other effect: attention depends on distances.
            past_key_values: Keys and values of earlier calls, a `DynamicCache`.
            inputs_embeds: (batch, time, d), in place of what the embedding of `input_ids` gives.
            token_type_ids: (batch, time), as some tokenizers return them; all must be 0, as there are no segments.
            use_cache: Whether to return keys and values; None: as configured.
            output_hidden_states: Whether to return what each layer reads; None: as configured.
            output_attentions: Has no effect: there are no attention weights.
        Raises:
            ValueError: If shapes do not fit, an id is outside the vocabulary, the cache is of another kind or another
                model, or with `paper_leaky` a text does not fill its segments, has padding before it, or there is a
                cache.
        """
        config = cast(TensorizedTransformerConfig, self.config)
        text = check_shapes(input_ids, inputs_embeds)
        cache = self._cache_of(past_key_values, text, use_cache)
        check_attention_mask(attention_mask, text, cache)
        check_segments(token_type_ids)
        check_embeddable(input_ids, text, vocab_size=num_rows(self.embed_tokens), hidden_size=config.hidden_size)
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
        config, (rows, time) = cast(TensorizedTransformerConfig, self.config), text.shape[:2]
        if position_ids is not None and position_ids.shape not in ((rows, time), (1, time)):
            raise ValueError(f"position_ids must be (batch, time), {(rows, time)}, got {tuple(position_ids.shape)}")
        if attention_mask is not None and attention_mask.dim() != 2:
            raise ValueError(
                f"attention_mask must be (batch, time), 0 at padding, got shape {tuple(attention_mask.shape)}: "
                "attention without a softmax takes no other mask"
            )
        if not config.paper_leaky:
            num_cached = 0 if cache is None else cache.get_seq_length()
            return reach_of(text, config.segment_length, num_cached, attention_mask, position_ids)
        check_segments_of(text, config.segment_length, attention_mask, position_ids)
        if attention_mask is None:
            return torch.ones(1, time, dtype=torch.bool, device=text.device)
        return attention_mask != 0

    def _cache_of(self, past_key_values: Cache | None, text: Tensor, use_cache: bool | None) -> Cache | None:
        """Return the cache to read and fill: the given one, or a new one if it is wanted; None: none."""
        config = cast(TensorizedTransformerConfig, self.config)
        past, checkpointing = past_key_values, self.is_activation_checkpointing and self.training
        if past is None:
            wanted = config.use_cache if use_cache is None else use_cache
            return DynamicCache(config=config) if wanted and not config.paper_leaky and not checkpointing else None
        if not isinstance(past, DynamicCache):
            raise ValueError(
                f"past_key_values must be a DynamicCache, got a {type(past).__name__}; leave out past_key_values and "
                "cache_implementation"
            )
        if checkpointing:  # not even an empty one, which `generate` expects to be filled
            raise ValueError(
                "gradient checkpointing in training takes no cache of earlier positions; call model.eval() to "
                "generate, or leave out past_key_values"
            )
        if config.paper_leaky:
            if past.get_seq_length():
                raise ValueError("paper_leaky=True takes no cache of earlier positions; leave out past_key_values")
            return None
        for index, layer in enumerate(past.layers[: config.num_hidden_layers]):
            keys: Tensor | None = getattr(layer, "keys", None)
            if keys is not None and keys.numel() and keys.shape[:2] + keys.shape[3:] != (len(text), 1, config.head_dim):
                raise ValueError(
                    f"layer {index} of past_key_values must have keys (batch, 1, positions, head_dim) of "
                    f"{len(text)} rows and width {config.head_dim}, got {tuple(keys.shape)}; give a new cache"
                )
        if past.get_seq_length() and len(past.layers) < config.num_hidden_layers:
            raise ValueError(
                f"past_key_values must have {config.num_hidden_layers} layers, as the model has, got "
                f"{len(past.layers)}; give a cache of this model"
            )
        return past
