"""Models on a CrammedBERT: the masked language model, and a classifier of texts or of pairs of texts."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import MaskedLMOutput, SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from hf_targets.backbones.checkpoint import StrictLoading
from hf_targets.backbones.inputs import check_masked_call, check_row_mask, without_padding
from hf_targets.backbones.weight_access import num_rows, weighted_output_cross_entropy
from hf_targets.crammed_bert.backbone import CrammedBertModel, CrammedBertPreTrainedModel
from hf_targets.crammed_bert.configuration import CrammedBertConfig
from hf_targets.crammed_bert.published import PublishedCrammedBert
from hf_targets.maths.losses import IGNORED, target_count


@dataclass
class CrammedBertMaskedLMOutput(MaskedLMOutput):
    """The output of `CrammedBertForMaskedLM`; `loss_parts` has the loss as `masked_token`, detached."""

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
            labels: (batch, time), the token at each masked position; -100 elsewhere. Labels at padding are no targets.
            num_items_in_batch: Divisor of the loss; None uses the number of labels here.
            skip_logits: Whether to skip the logits; None skips them in training with labels: then only masked positions
                meet the output matrix, as in the published program.
            kwargs: Passed to `CrammedBertModel`, as the other arguments are, except `label_smoothing`.
        Raises:
            ValueError: If shapes do not fit, an id is outside the vocabulary, or there is a count but no labels.
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


class CrammedBertHead(nn.Module):
    """A pooled state, a layer with tanh, dropout, and a linear classifier.

    Source: JonasGeiping/cramming, its classification head.
    """

    def __init__(self, config: CrammedBertConfig) -> None:
        super().__init__()
        self.config = config
        self.dense = nn.Linear(config.hidden_size, config.classifier_size)
        self.out_proj = nn.Linear(config.classifier_size, cast(int, config.num_labels))

    def forward(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Return logits (batch, num_labels) of hidden states (batch, time, d)."""
        pooled = _pooled(hidden, attention_mask, first=self.config.classifier_pooling == "cls")
        states = F.dropout(torch.tanh(self.dense(pooled)), self.config.classifier_dropout, self.training)
        return self.out_proj(states)


class CrammedBertForSequenceClassification(PublishedCrammedBert, StrictLoading, CrammedBertPreTrainedModel):
    """A CrammedBERT with a classifier of texts.

    `AutoModelForSequenceClassification` loads it from what `CrammedBertForMaskedLM` saved. The classifier is then new,
    and Transformers says so; every other tensor must be there.
    """

    accepts_loss_kwargs = False  # the loss is a mean over the texts of a batch; Trainer divides it by batches
    made_by = "from_published"
    new_parts = ("classifier.",)
    _keys_to_ignore_on_load_unexpected = [r"^lm_head\."]  # noqa: RUF012, as the base class has it

    def __init__(self, config: CrammedBertConfig) -> None:
        super().__init__(config)
        self.model = CrammedBertModel(config)
        self.classifier = CrammedBertHead(config)
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
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> SequenceClassifierOutput:
        """Compute logits (batch, num_labels), and with labels the loss.

        Args:
            attention_mask: (batch, time), 0 at padding; the pooled state needs it in this form.
            labels: (batch,), class ids, -100 for none, or numbers where `num_labels` is 1; or (batch, num_labels), 0 or
                1 for each of several classes. `config.problem_type` chooses the loss; None: what labels look like.
            others: As for `CrammedBertModel`.
        """
        check_row_mask(attention_mask, "to classify")
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            return_dict=True,
        )
        logits = self.classifier(outputs.last_hidden_state, attention_mask)
        loss = None
        if labels is not None:
            count = (labels != IGNORED).sum().clamp(min=1)  # of classes, of which there may be none
            if self.config.problem_type is None and labels.dim() == 2 and logits.shape[-1] > 1:
                self.config.problem_type = "multi_label_classification"
            if self.config.problem_type == "multi_label_classification":
                labels = labels.float()
            loss = self.loss_function(labels, logits.float(), self.config, num_items_in_batch=count)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


def _pooled(hidden: Tensor, attention_mask: Tensor | None, *, first: bool) -> Tensor:
    """Return the mean, or the first, of the states (batch, time, d) that are no padding: (batch, d)."""
    if attention_mask is None:
        return hidden[:, 0] if first else hidden.mean(dim=1)
    keep = attention_mask.to(hidden.device) != 0
    if first:
        return hidden[torch.arange(len(hidden), device=hidden.device), keep.long().argmax(dim=1)]
    # Departs: the published program takes the mean with the padding in it, so that a text's class depends on its batch
    kept = hidden.masked_fill(~keep[..., None], 0.0).sum(dim=1)
    return kept / keep.sum(dim=1, keepdim=True).clamp(min=1)
