"""The head of a causal language model on layers of ours: logits of the next token, and a loss of named parts."""

# pyright: reportAttributeAccessIssue=false
# (a mixin: the model defines `model` and `lm_head`, and has the methods of PreTrainedModel)

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from hf_targets.backbones.call import Call
from hf_targets.backbones.inputs import check_prompt_mask
from hf_targets.backbones.weight_access import num_rows, weighted_output_cross_entropy


@dataclass
class CausalHeadOutput(CausalLMOutputWithPast):
    """The output of a model with a `CausalHead`; `loss_parts` has its parts without their weights, detached."""

    loss_parts: dict[str, Tensor] | None = None


_OF_FLATTENED_ROWS = ("seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
"""Where packed texts begin, for attention kernels, as `DataCollatorWithFlattening` tells it beside `position_ids`."""


class CausalHead:
    """`forward` and `generate` of a model that has the layers `model`, and `lm_head`, its output matrix."""

    accepts_loss_kwargs = True  # the loss is divided by num_items_in_batch
    smooths_labels = True  # forward takes `label_smoothing`
    new_parts = ("lm_head.",)  # to a checkpoint of the base model
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012, as Transformers has it

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
    ) -> CausalHeadOutput:
        """Compute logits of the next token, and with labels the loss.

        Args:
            attention_mask: (batch, time), 0 at padding on either side.
            position_ids: (batch, time). In packed rows they restart at 0 with each document, which then does not read
                the one before, and whose first token is not predicted.
            past_key_values: The cache of earlier calls, with which each row goes on.
            labels: (batch, time), unshifted. Labels of -100 are not targets. Neither is the first of a sequence.
            token_type_ids: (batch, time), as some tokenizers return them; all must be 0.
            num_items_in_batch: Divisor of every part of the loss; None uses the number of targets here.
            logits_to_keep: Number of last positions, or a tensor of indices, for which to compute logits; 0 means all.
            skip_logits: Whether to skip the logits; None skips them in training with labels.
            kwargs: Passed to the layers, except `shift_labels`, which are shifted already and go before `labels`, and
                `label_smoothing`. With labels there is no cache unless `use_cache=True` is given.
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
        for name in _OF_FLATTENED_ROWS:
            call.others.pop(name, None)
        call.check_ids(num_rows(self.lm_head))
        outputs: Any = call.read(self)  # pyright: ignore[reportArgumentType]
        hidden, targets = outputs.last_hidden_state, call.targets
        loss = parts = None
        if targets is not None:
            equal = torch.ones_like(targets, dtype=torch.float32)
            total, _ = weighted_output_cross_entropy(self.lm_head, hidden, targets, equal, label_smoothing=smoothing)
            loss = total / call.count(targets)
            parts = {"next_token": loss}
            for name, (weight, part) in self._other_parts(outputs, call).items():
                loss, parts[name] = loss + weight * part, part
            parts = {name: part.detach().clone() for name, part in parts.items()}
        wants_logits = call.wants_logits(skip_logits, training=self.training)
        return CausalHeadOutput(
            loss=loss,
            logits=self.lm_head(hidden[:, call.kept]) if wants_logits else None,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            loss_parts=parts,
        )

    def _other_parts(self, outputs: Any, call: Call) -> dict[str, tuple[float, Tensor]]:
        """Return the parts of the loss beside that of the next token, each with its weight.

        Args:
            outputs: Of the layers.
            call: Has targets.
        """
        return {}

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate as `GenerationMixin` does; given the cache of an earlier call, only what is new is read."""
        check_prompt_mask(args[0] if args else None, kwargs)
        return super().generate(*args, **kwargs)
