"""The AWD-LSTM language model: LSTM layers, an output matrix tied to the embeddings, and the loss that regularises."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from hf_targets.awd_lstm.backbone import AwdLstmModel, AwdLstmPreTrainedModel
from hf_targets.awd_lstm.configuration import AwdLstmConfig
from hf_targets.backbones.alignment import steps_into_sequence
from hf_targets.backbones.call import Call
from hf_targets.backbones.inputs import check_prompt_mask
from hf_targets.backbones.weight_access import num_rows, weighted_output_cross_entropy
from hf_targets.maths.losses import IGNORED


@dataclass
class AwdLstmCausalLMOutput(CausalLMOutputWithPast):
    """The output of `AwdLstmForCausalLM`; `past_key_values` is the state after the text.

    Attributes:
        loss_parts: `next_token`, the cross-entropy; in training also `activation` and `temporal`, whose weights are
            `config.activation_weight` and `config.temporal_weight`; detached. All are divided by the number of targets.
    """

    loss_parts: dict[str, Tensor] | None = None


class AwdLstmForCausalLM(AwdLstmPreTrainedModel, GenerationMixin):
    """An LSTM language model with dropped recurrent weights.

    Its cache is the state of its layers, of constant size however long the text is. `torch.compile` breaks its graph at
    each layer. It cannot take back tokens, so that assisted generation is refused.

    Source: Merity et al., "Regularizing and Optimizing LSTM Language Models"; salesforce/awd-lstm-lm.
    """

    accepts_loss_kwargs = True  # the loss is divided by num_items_in_batch
    smooths_labels = True  # forward takes `label_smoothing`
    new_parts = ("lm_head.",)  # to a checkpoint of the base model
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012, as the base class has it

    def __init__(self, config: AwdLstmConfig) -> None:
        super().__init__(config)
        self.model = AwdLstmModel(config)
        self.lm_head = nn.Linear(config.layer_sizes[-1][1], config.vocab_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        token_type_ids: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        **kwargs: Any,
    ) -> AwdLstmCausalLMOutput:
        """Compute logits of the next token, and with labels the loss.

        Args:
            attention_mask: (batch, time), 0 at padding on either side.
            position_ids: (batch, time). In packed rows they restart at 0 with each document, which then begins with a
                state of 0, and whose first token is not predicted.
            past_key_values: The state of earlier calls, with which each row goes on.
            labels: (batch, time), unshifted. Labels of -100 are not targets. Neither is the first of a sequence.
            token_type_ids: (batch, time), as some tokenizers return them; all must be 0.
            num_items_in_batch: Divisor of every part of the loss; None uses the number of targets here.
            logits_to_keep: Number of last positions, or a tensor of indices, for which to compute logits; 0 means all.
            skip_logits: Whether to skip the logits; None skips them in training with labels.
            kwargs: Passed to `AwdLstmModel`, except `shift_labels`, which are shifted already and go before `labels`,
                and `label_smoothing`. With labels there is no cache unless `use_cache=True` is given.
        Raises:
            ValueError: If shapes do not fit, an id is outside the vocabulary, or the cache is of another model.
        """
        call = Call.causal(
            kwargs,
            logits_to_keep=logits_to_keep,
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            labels=labels,
            token_type_ids=token_type_ids,
            num_items_in_batch=num_items_in_batch,
        )
        smoothing: float = call.others.pop("label_smoothing", 0.0)
        call.check_ids(num_rows(self.lm_head))
        outputs = call.read(self)
        hidden, targets = cast(Tensor, outputs.last_hidden_state), call.targets
        loss = parts = None
        if targets is not None:
            loss, parts = self._losses(hidden, outputs.undropped, targets, call, smoothing)
        wants_logits = call.wants_logits(skip_logits, training=self.training)
        return AwdLstmCausalLMOutput(
            loss=loss,  # pyright: ignore[reportArgumentType]
            logits=self.lm_head(hidden[:, call.kept]) if wants_logits else None,  # pyright: ignore[reportArgumentType]
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            loss_parts=parts,
        )

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate as `GenerationMixin` does; from the state of an earlier call only what is new is read."""
        check_prompt_mask(args[0] if args else None, kwargs)
        return super().generate(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue], a Protocol has more

    def _losses(
        self, hidden: Tensor, undropped: Tensor, targets: Tensor, call: Call, smoothing: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of last hidden states (batch, time, d), and its parts."""
        config, count = cast(AwdLstmConfig, self.config), call.count(targets)
        equal = torch.ones_like(targets, dtype=torch.float32)
        total, _ = weighted_output_cross_entropy(self.lm_head, hidden, targets, equal, label_smoothing=smoothing)
        parts = {"next_token": total / count}
        weights = {"next_token": 1.0}
        if self.training:
            rows, time = targets.shape
            steps = steps_into_sequence(rows, time, call.attention_mask, call.position_ids, targets.device)
            scored = targets != IGNORED
            # Departs: the published program divides by positions, (batch x time) and (batch x (time - 1)). Divided by
            # targets, like the cross-entropy, the parts of several batches add up to those of one large batch
            squares = hidden.float().square().mean(dim=-1)
            changes = undropped[:, 1:].float().sub(undropped[:, :-1].float()).square().mean(dim=-1)
            follows = scored[:, 1:] & (steps[:, 1:] > 0)
            parts["activation"] = squares.masked_fill(~scored, 0.0).sum() / count
            parts["temporal"] = changes.masked_fill(~follows, 0.0).sum() / count
            weights |= {"activation": config.activation_weight, "temporal": config.temporal_weight}
        loss = cast(Tensor, sum(weights[name] * part for name, part in parts.items()))
        return loss, {name: part.detach().clone() for name, part in parts.items()}
