"""The layers of an AWD-LSTM without its output matrix: from token ids to hidden states."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import can_return_tuple

from hf_targets.awd_lstm.configuration import AwdLstmConfig
from hf_targets.awd_lstm.layers import (
    EMBEDDING_RANGE,
    WeightDropLstm,
    as_lstm_cache,
    dropout_mask,
    lstm_layers,
    states_of,
)
from hf_targets.awd_lstm.runs import Runs
from hf_targets.backbones.checkpoint import StrictLoading
from hf_targets.backbones.inputs import check_row_mask, check_text
from hf_targets.backbones.recorded_states import Wanted
from hf_targets.backbones.weight_access import num_rows


@dataclass
class AwdLstmOutput(BaseModelOutputWithPast):
    """The output of `AwdLstmModel`, with `undropped` (batch, time, d): that of the last layer before dropout."""

    undropped: Tensor | None = None


class AwdLstmPreTrainedModel(StrictLoading, PreTrainedModel):
    """What the model and the layers without its output matrix share."""

    config_class = AwdLstmConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["WeightDropLstm"]  # noqa: RUF012, as the base class has it
    _is_stateful = True  # drafts cannot be taken back

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as published: embeddings and output matrix uniformly in +-0.1, the output bias with 0."""
        if isinstance(module, WeightDropLstm):
            module.reset_parameters()
        elif isinstance(module, nn.Embedding | nn.Linear):
            init.uniform_(module.weight, -EMBEDDING_RANGE, EMBEDDING_RANGE)
            if isinstance(module, nn.Linear) and module.bias is not None:
                init.zeros_(module.bias)


class AwdLstmModel(AwdLstmPreTrainedModel):
    """The embeddings and LSTM layers of `AwdLstmForCausalLM`, which return hidden states; `AutoModel` loads this.

    Source: Merity et al., "Regularizing and Optimizing LSTM Language Models", section 4.
    """

    _keys_to_ignore_on_load_unexpected = [r"^lm_head\."]  # noqa: RUF012, as the base class has it

    def __init__(self, config: AwdLstmConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size)
        self.layers = nn.ModuleList(WeightDropLstm(config, *sizes) for sizes in config.layer_sizes)
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
    ) -> AwdLstmOutput:
        """Return the hidden states (batch, time, d) of a text, and with a cache the state after it.

        Args:
            attention_mask: (batch, time), or (batch, positions in the cache + time); 0 at padding, which the layers
                pass over: it changes neither the other hidden states nor the state.
            position_ids: (batch, time). Wherever they do not go up by one, a new text begins with a state of 0.
            past_key_values: The state of earlier calls, with which the first text of each row begins.
            inputs_embeds: (batch, time, embedding_size), in place of `input_ids`.
            output_hidden_states: Whether to return what each layer reads, and the last hidden state.
            output_attentions: Has no effect: there is no attention.
            others: As for `CausalHead`, as are the errors.
        """
        config = cast(AwdLstmConfig, self.config)
        arguments = input_ids, inputs_embeds, attention_mask, position_ids, token_type_ids
        text = check_text(*arguments, num_rows(self.embed_tokens), config.embedding_size, cache=past_key_values)
        use_cache = config.use_cache if use_cache is None else use_cache
        given = past_key_values is not None
        cache = as_lstm_cache(past_key_values, len(self.layers)) if use_cache or given else None
        runs = _runs_of(text, attention_mask, position_ids)
        inputs = text if input_ids is None else self._embed(input_ids)
        rows, time = text.shape[:2]
        wanted, read = Wanted.of(config, output_hidden_states, None).hidden_states, []
        values = self._dropped(inputs if runs is None else runs.pack(inputs), config.input_dropout, runs)
        undropped = values

        def whole(values: Tensor) -> Tensor:
            return values if runs is None else runs.unpack(values)

        for index, layer in enumerate(self.layers):
            layer = cast(WeightDropLstm, layer)
            if wanted:
                read.append(whole(values))
                values = read[-1] if runs is None else runs.pack(read[-1])  # what is returned is what the layer reads
            undropped, *state = self._run(layer, values, states_of(cache, index, rows, values, layer.size), runs)
            is_last = index + 1 == len(self.layers)
            values = self._dropped(undropped, config.output_dropout if is_last else config.hidden_dropout, runs)
            if use_cache:
                lstm_layers(cache)[index].update(*state, time)
        return AwdLstmOutput(
            last_hidden_state=whole(values),  # pyright: ignore[reportArgumentType]
            past_key_values=cache if use_cache else None,
            hidden_states=(*read, whole(values)) if wanted else None,  # pyright: ignore[reportArgumentType]
            undropped=whole(undropped),
        )

    def _embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings of token ids, in training with a share of the vocabulary at 0."""
        # Departs: the published program gives the embedding of the last word no gradient in training, as it takes it
        # for padding (`padding_idx=-1`)
        embeds = self.embed_tokens(ids)
        share = cast(AwdLstmConfig, self.config).embedding_dropout
        if not self.training or not share:
            return embeds
        return embeds * dropout_mask(embeds, (num_rows(self.embed_tokens),), share)[ids][..., None]

    def _dropped(self, values: Tensor, share: float, runs: Runs | None) -> Tensor:
        """Return values in training with the same part of them at 0 in each step of a run."""
        if not self.training or not share:
            return values
        if runs is None:
            return values * dropout_mask(values, (len(values), 1, values.shape[-1]), share)
        return values * dropout_mask(values, (len(runs.row_of), values.shape[-1]), share)[runs.run_of]

    @staticmethod
    def _run(
        layer: WeightDropLstm, values: Tensor, state: tuple[Tensor, Tensor], runs: Runs | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs of a layer, and the state (batch, size) after them."""
        if runs is None:
            return layer(values, *state)
        if not len(values):  # padding alone
            return values.new_zeros(0, layer.size), *state
        outputs, *after = layer(values, *map(runs.begin, state), runs.batch_sizes)
        hidden, cell = (runs.end(found, before) for found, before in zip(after, state, strict=True))
        return outputs, hidden, cell


def _runs_of(text: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None) -> Runs | None:
    """Return the runs of a text (batch, time); None if each row is one."""
    check_row_mask(attention_mask)
    time = text.shape[1]
    if attention_mask is None and (position_ids is None or time == 1):
        return None
    keep = torch.ones_like(text[..., 0] if text.dim() == 3 else text, dtype=torch.bool)
    return Runs.of(keep if attention_mask is None else attention_mask[:, -time:] != 0, position_ids)
