"""The layers of a CrammedBERT without its output matrix: from token ids to hidden states."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import eager_attention_forward
from transformers.utils.generic import can_return_tuple

from hf_targets.backbones.checkpoint import StrictLoading
from hf_targets.backbones.inputs import check_kept_ids, check_text
from hf_targets.backbones.recorded_states import Wanted, recorded_weights
from hf_targets.backbones.weight_access import num_rows
from hf_targets.crammed_bert.configuration import CrammedBertConfig

_NO_SEGMENTS = 'set tokenizer.model_input_names = ["input_ids", "attention_mask"]'
_LONGEST_PERIOD = 10_000.0


class ScaledSines(nn.Module):
    """Positions as sines and cosines in turn, times a learnt scale, which begins at 1 / sqrt(d).

    They are computed in each pass, in float32 (float64 for a float64 model), and are no buffer: no table ends, and no
    cast or move to another device changes them.
    """

    def __init__(self, config: CrammedBertConfig) -> None:
        super().__init__()
        self.size = config.hidden_size
        self.scale = nn.Parameter(torch.tensor([self.size**-0.5]))

    def forward(self, positions: Tensor) -> Tensor:
        """Return the embeddings (batch, time, d) of positions (batch, time)."""
        wide = torch.promote_types(self.scale.dtype, torch.float32)
        half = torch.arange(0, self.size, 2, dtype=wide, device=positions.device)
        angles = positions.to(wide)[..., None] * _LONGEST_PERIOD ** (-half / self.size)
        table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return (self.scale * table).to(self.scale.dtype)


class CrammedBertAttention(nn.Module):
    """Self-attention without biases. Rows of the first matrix are query, key and value of each head in turn."""

    def __init__(self, config: CrammedBertConfig) -> None:
        super().__init__()
        self.config = config
        self.head_size = config.hidden_size // config.num_attention_heads
        self.is_causal = False  # the attention functions of Transformers read it, and assume True if it is missing
        self.query_key_value = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the attended states (batch, time, d), and the weights of eager attention."""
        batch, time, size = hidden.shape
        heads = self.query_key_value(hidden).view(batch, time, -1, 3 * self.head_size).transpose(1, 2)
        name = cast(str, self.config._attn_implementation)
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention_forward)
        attended, weights = attend(
            self,
            *heads.split(self.head_size, dim=-1),
            attention_mask,
            dropout=self.config.attention_probs_dropout_prob if self.training else 0.0,
            scaling=self.head_size**-0.5,
            is_causal=False,
        )
        return self.dense(attended.reshape(batch, time, size)), weights


class CrammedBertLayer(GradientCheckpointingLayer):
    """x + attention(norm(x)), then the same with a gated feed-forward layer, dense_out(GELU(gate) * value)."""

    def __init__(self, config: CrammedBertConfig) -> None:
        super().__init__()
        self.config = config
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = CrammedBertAttention(config)
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dense_in = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.dense_out = nn.Linear(config.intermediate_size // 2, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Return hidden states (batch, time, d); the mask is that of `create_bidirectional_mask`."""
        hidden = hidden + self._dropped(self.attention(self.norm1(hidden), attention_mask)[0])
        value, gate = self.dense_in(self.norm2(hidden)).chunk(2, dim=-1)
        return hidden + self._dropped(self.dense_out(F.gelu(gate) * value))

    def _dropped(self, states: Tensor) -> Tensor:
        return F.dropout(states, self.config.hidden_dropout_prob, self.training)


class CrammedBertPreTrainedModel(PreTrainedModel):
    """What the models with and without an output matrix or a classifier share."""

    config_class = CrammedBertConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["CrammedBertLayer"]  # noqa: RUF012, as the base class has it
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the vocabulary; a ValueError if it would lose the id of padding."""
        check_kept_ids(self.config, new_num_tokens, "pad_token_id")
        return super().resize_token_embeddings(new_num_tokens, *args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as published: weights normally, biases with 0, and the embedding of padding with 0."""
        std = cast(CrammedBertConfig, self.config).initializer_range
        if isinstance(module, nn.Linear | nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                init.zeros_(module.bias)
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, ScaledSines):
            init.constant_(module.scale, module.size**-0.5)


class CrammedBertModel(StrictLoading, CrammedBertPreTrainedModel):
    """The embeddings and layers of a CrammedBERT, which return hidden states; `AutoModel` loads this.

    Source: Geiping and Goldstein, "Cramming", section 4.2; JonasGeiping/cramming.
    """

    _keys_to_ignore_on_load_unexpected = [r"^(lm_head|classifier)\."]  # noqa: RUF012, as the base class

    def __init__(self, config: CrammedBertConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.embed_positions = ScaledSines(config)
        self.embed_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layers = nn.ModuleList(CrammedBertLayer(config) for _ in range(config.num_hidden_layers))
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> BaseModelOutput:
        """Return the hidden states (batch, time, d) of a text.

        Args:
            attention_mask: (batch, time), 0 at padding on either side.
            token_type_ids: (batch, time), as some tokenizers return them; all must be 0: a CrammedBERT tells two texts
                apart by the token between them.
            position_ids: (batch, time); None counts the tokens that are no padding.
            inputs_embeds: (batch, time, d), in place of `input_ids`.
            output_hidden_states, output_attentions: Whether to return the input of each layer and the last hidden
                state, and the weights of eager attention; None: as configured.
        Raises:
            ValueError: If shapes do not fit, or an id is outside the vocabulary.
        """
        config = cast(CrammedBertConfig, self.config)
        given = input_ids, inputs_embeds, attention_mask, position_ids, token_type_ids
        text = check_text(*given, num_rows(self.embed_tokens), config.hidden_size, hint=_NO_SEGMENTS)
        embeds = text if input_ids is None else self.embed_tokens(input_ids)
        positions = _positions(text, attention_mask) if position_ids is None else position_ids
        hidden = self.embed_norm(embeds + self.embed_positions(positions))
        hidden = F.dropout(hidden, config.hidden_dropout_prob, self.training)
        mask = create_bidirectional_mask(config, hidden, attention_mask)
        wanted, read = Wanted.of(config, output_hidden_states, output_attentions), []
        attentions = [cast(CrammedBertLayer, layer).attention for layer in self.layers]
        with recorded_weights(attentions, wanted=wanted.attentions) as weights:
            for layer in self.layers:
                read.append(hidden)
                hidden = layer(hidden, mask)
        hidden = self.final_norm(hidden)
        return BaseModelOutput(
            last_hidden_state=hidden,
            hidden_states=(*read, hidden) if wanted.hidden_states else None,  # pyright: ignore[reportArgumentType]
            attentions=tuple(weights) if wanted.attentions else None,  # pyright: ignore[reportArgumentType]
        )


def _positions(text: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return (batch, time) or (1, time), how many tokens that are no padding stand before each.

    Departs: the published program numbers padding too, which it has on the right alone.
    """
    if isinstance(attention_mask, Tensor) and attention_mask.dim() == 2:
        return ((attention_mask != 0).long().cumsum(dim=1) - 1).clamp(min=0)
    return torch.arange(text.shape[1], device=text.device)[None]
