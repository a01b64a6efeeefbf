"""The masked language model of a CrammedBERT."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from hf_targets.backbones.checkpoint import StrictLoading
from hf_targets.backbones.inputs import check_masked_call, without_padding
from hf_targets.backbones.weight_access import num_rows, weighted_output_cross_entropy
from hf_targets.crammed_bert.backbone import CrammedBertModel, CrammedBertPreTrainedModel
from hf_targets.crammed_bert.configuration import CrammedBertConfig
from hf_targets.crammed_bert.published import PublishedCrammedBert
from hf_targets.maths.losses import IGNORED, target_count


@dataclass
class CrammedBertMaskedLMOutput(MaskedLMOutput):
    """The output of `CrammedBertForMaskedLM`.

    Attributes:
        loss: The mean cross-entropy of the masked tokens; None without labels.
        loss_parts: `masked_token`, the same value, detached.
        logits: (batch, time, vocab); None if they were skipped.
        hidden_states, attentions: As of `CrammedBertModel`; None unless requested.
    """

    loss_parts: dict[str, Tensor] | None = None


class CrammedBertForMaskedLM(PublishedCrammedBert, StrictLoading, CrammedBertPreTrainedModel):
    """A BERT that is quick to pre-train: normalisation first, gates, few biases, no transform before its output matrix.

    `CrammedBertForMaskedLM.from_published` reads checkpoints of the published program.

    Source: Geiping and Goldstein, "Cramming: Training a Language Model on a Single GPU in One Day", section 4.2;
        JonasGeiping/cramming.
    """

    accepts_loss_kwargs = True  # the loss is divided by num_items_in_batch
    smooths_labels = True  # forward takes `label_smoothing`
    made_by = "from_published"
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012, as the base class has it

    def __init__(self, config: CrammedBertConfig) -> None:
        super().__init__(config)
        self.model = CrammedBertModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        num_items_in_batch: Tensor | int | None = None,
        skip_logits: bool | None = None,
        **kwargs: Any,
    ) -> CrammedBertMaskedLMOutput:
        """Compute logits, and with labels the loss.

        Args:
            input_ids: (batch, time).
            attention_mask, token_type_ids, position_ids, inputs_embeds: As for `CrammedBertModel`.
            labels: (batch, time), the token at each masked position; -100 elsewhere. Labels at padding are no targets.
            num_items_in_batch: Divisor of the loss; None uses the number of labels here.
            skip_logits: Whether to skip the logits; None skips them in training with labels, as the published program
                does: then only masked positions meet the output matrix.
            kwargs: Passed to `CrammedBertModel`, except `label_smoothing`, the share of the uniform distribution in the
                targets of the loss.
        Raises:
            ValueError: If shapes do not fit, an id is outside the vocabulary, or there is `num_items_in_batch` but no
                labels.
        """
        smoothing: float = kwargs.pop("label_smoothing", 0.0)
        count = num_items_in_batch
        check_masked_call(input_ids, inputs_embeds, labels, count, kwargs, vocab_size=num_rows(self.lm_head))
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            return_dict=True,
            **kwargs,
        )
        hidden: Tensor = outputs.last_hidden_state
        skips = self.training and labels is not None if skip_logits is None else skip_logits
        loss = parts = None
        if labels is not None:
            targets = without_padding(labels, attention_mask).to(hidden.device)
            is_target = targets != IGNORED
            # Departs: the published program sorts positions and takes a fixed number, so that it compiles without a
            # break, and drops a target where a batch has more
            equal = torch.ones_like(targets[is_target], dtype=torch.float32)
            total, _ = weighted_output_cross_entropy(
                self.lm_head, hidden[is_target], targets[is_target], equal, label_smoothing=smoothing
            )
            loss = total / target_count(targets, count)
            parts = {"masked_token": loss.detach().clone()}
        return CrammedBertMaskedLMOutput(
            loss=loss,  # pyright: ignore[reportArgumentType]
            logits=None if skips else self.lm_head(hidden),  # pyright: ignore[reportArgumentType]
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            loss_parts=parts,
        )
