"""A classifier of texts, or of pairs of texts, on a CrammedBERT."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import SequenceClassifierOutput

from hf_targets.crammed_bert.backbone import CrammedBertModel, CrammedBertPreTrainedModel
from hf_targets.crammed_bert.configuration import CrammedBertConfig
from hf_targets.crammed_bert.published import PublishedCrammedBert


class CrammedBertForSequenceClassification(PublishedCrammedBert, CrammedBertPreTrainedModel):
    """A CrammedBERT with a pooled state, a layer with tanh, and a linear classifier.

    `AutoModelForSequenceClassification` loads it from what `CrammedBertForMaskedLM` saved. The layers of the classifier
    are then new, and Transformers says so.

    Source: JonasGeiping/cramming, its classification head.
    """

    accepts_loss_kwargs = False  # the loss is a mean over the texts of a batch; Trainer divides it by batches
    _keys_to_ignore_on_load_unexpected = [r"^lm_head\."]  # noqa: RUF012, as the base class has it

    def __init__(self, config: CrammedBertConfig) -> None:
        super().__init__(config)
        self.model = CrammedBertModel(config)
        self.dense = nn.Linear(config.hidden_size, config.classifier_size)
        self.classifier = nn.Linear(config.classifier_size, cast(int, config.num_labels))
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Compute logits (batch, num_labels), and with labels the loss.

        Args:
            input_ids: (batch, time).
            attention_mask, token_type_ids, position_ids, inputs_embeds: As for `CrammedBertModel`.
            labels: (batch,), class ids or numbers, or (batch, num_labels); `config.problem_type` chooses the loss, as
                in other models of Transformers.
            kwargs: Passed to `CrammedBertModel`.
        """
        config = cast(CrammedBertConfig, self.config)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        pooled = _pooled(outputs.last_hidden_state, attention_mask, first=config.classifier_pooling == "cls")
        states = F.dropout(torch.tanh(self.dense(pooled)), config.classifier_dropout, self.training)
        logits = self.classifier(states)
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=config)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


def _pooled(hidden: Tensor, attention_mask: Tensor | None, *, first: bool) -> Tensor:
    """Return the mean, or the first, of the states (batch, time, d) that are no padding: (batch, d)."""
    if not isinstance(attention_mask, Tensor) or attention_mask.dim() != 2:
        return hidden[:, 0] if first else hidden.mean(dim=1)
    keep = attention_mask != 0
    if first:
        return hidden[torch.arange(len(hidden), device=hidden.device), keep.long().argmax(dim=1)]
    # Departs: the published program takes the mean with the padding in it, so that a text's class depends on its batch
    kept = hidden.masked_fill(~keep[..., None], 0.0).sum(dim=1)
    return kept / keep.sum(dim=1, keepdim=True).clamp(min=1)
