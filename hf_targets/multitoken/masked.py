"""A masked language model around any backbone, with heads that predict word differences at masked positions."""

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForMaskedLM, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from hf_targets.backbones.inputs import check_attention_mask, check_masked_call, check_position_shape, without_padding
from hf_targets.backbones.output_reading import check_masked_backbone, read_masked
from hf_targets.backbones.positions import check_positions
from hf_targets.backbones.weight_access import call_inside, num_rows
from hf_targets.backbones.wrapping import backbone_inputs
from hf_targets.maths.losses import IGNORED, ngram_weights, target_count, weighted_cross_entropy
from hf_targets.multitoken.configuration import MultiTokenMaskedConfig
from hf_targets.multitoken.heads import FutureHeads
from hf_targets.multitoken.model import MultiTokenModel


@dataclass
class MultiTokenMaskedLMOutput(MaskedLMOutput):
    """The output of `MultiTokenForMaskedLM`, in every mode.

    Attributes:
        loss: L_0 / 2 + alpha / (2 N) * (L_1 + ... + L_N); None without labels.
        loss_parts: The terms of that sum, unweighted and detached: `masked_token`, and `head_1` to `head_N`.
        logits: (batch, time, vocab), the backbone's; None if they were skipped.
        last_hidden_state: (batch, time, d), the input of the output matrix and the heads; None unless requested.
    """

    loss_parts: dict[str, Tensor] | None = None
    last_hidden_state: Tensor | None = None


class MultiTokenForMaskedLM(MultiTokenModel):
    """Any masked language model with N heads: BERT, RoBERTa, ModernBERT, DistilBERT, ELECTRA's generator and others.

    At a masked position the ordinary head predicts the masked token, and head n the level-n difference of that token
    and the n tokens that follow. The sum of this and its conjugate is the predicted embedding of the n-th token that
    follows. With `target="embedding"` head n predicts that embedding directly. Heads read what the output matrix reads,
    so that the transform before it is part of the model. Logits are those of the backbone.

    The tokens that follow are those of the row, most of which the model sees: a leak that the paper names. With
    `masked_only=True`, its proposal for later, they are the masked tokens that follow: of these the model sees only the
    tenth that masking leaves in place.

    `model.backbone.save_pretrained(folder)` saves what `AutoModelForSequenceClassification` and others fine-tune.

    Args:
        config: The configuration of the heads, which contains that of the backbone.
        backbone: The model to wrap, used as it is; None makes one with random weights.
    Raises:
        ValueError: If the backbone reads only what is before a token, or its logits are not its output matrix applied
            once.
    Source: Heo et al., "N-gram Prediction and Word Difference Representations for Language Modeling", the section on
        masked language models and appendix A.3.
    """

    config_class = MultiTokenMaskedConfig
    auto_class = AutoModelForMaskedLM
    trained_by = "MultiTokenMaskedTrainer"

    @classmethod
    def _output_scale(cls, backbone: PreTrainedModel) -> float | None:
        check_masked_backbone(backbone)
        return None

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
        output_last_hidden_state: bool = False,
        **kwargs: Any,
    ) -> MultiTokenMaskedLMOutput:
        """Compute logits, and with labels the loss.

        Args:
            input_ids: (batch, time).
            attention_mask: (batch, time), 0 at padding.
            token_type_ids, position_ids: (batch, time), for a backbone that takes them.
            labels: (batch, time), the token at each masked position; -100 elsewhere. Labels at padding are no targets.
            num_items_in_batch: Divisor of every part of the loss; None uses the number of labels here.
            skip_logits: Whether to skip the logits; None skips them in training with labels.
            output_last_hidden_state: Whether to return what the output matrix reads.
            kwargs: Passed to the backbone, except `label_smoothing`, the share of the uniform distribution in the
                targets of the loss.
        Raises:
            ValueError: If shapes do not fit, an id is outside the vocabulary, there is `num_items_in_batch` but no
                labels, or tokens that follow are to be predicted and there are no `input_ids` to take them from.
        """
        smoothing: float = kwargs.pop("label_smoothing", 0.0)
        text = check_masked_call(
            input_ids,
            inputs_embeds,
            labels,
            num_items_in_batch,
            kwargs,
            vocab_size=num_rows(self.get_output_embeddings()),
        )
        check_attention_mask(attention_mask, text, None)
        check_position_shape(position_ids, text)
        check_positions(self.backbone, position_ids)
        skips = self.training and labels is not None if skip_logits is None else skip_logits
        inputs = kwargs | backbone_inputs(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
        )
        if labels is None and not output_last_hidden_state:  # logits alone: in one graph, and for export
            states, outputs = None, self.backbone(**inputs, return_dict=True)
        else:
            states, outputs = read_masked(self.backbone, with_logits=not skips, **inputs)
        loss = parts = None
        if labels is not None and states is not None:
            labels = without_padding(labels, attention_mask)
            tokens = self._tokens(labels, input_ids, attention_mask)
            count = target_count(labels, num_items_in_batch)
            # a single call with a gradient: with several, FSDP may lose the gradient of a tied matrix
            score = partial(_score, cast(FutureHeads, self.heads), self.config.loss_weight)
            layer = self.get_output_embeddings()
            masked = states[(labels != IGNORED).to(states.device)]
            total, sums = call_inside(layer, score, masked, tokens.to(states.device), smoothing)
            loss = total / count
            parts = {f"head_{n}" if n else "masked_token": part / count for n, part in enumerate(sums)}
        return MultiTokenMaskedLMOutput(
            loss=loss,
            logits=None if skips else outputs.logits,
            hidden_states=outputs.get("hidden_states"),
            attentions=outputs.get("attentions"),
            loss_parts=parts,
            last_hidden_state=states if output_last_hidden_state else None,  # pyright: ignore[reportArgumentType]
        )

    def _tokens(self, labels: Tensor, input_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        """Return `following_tokens` of a call."""
        config = cast(MultiTokenMaskedConfig, self.config)
        if input_ids is None and not config.masked_only:
            raise ValueError("the tokens that follow a masked one are taken from input_ids; give them, or masked_only")
        two_axes = isinstance(attention_mask, Tensor) and attention_mask.dim() == 2
        keep = attention_mask != 0 if two_axes else torch.ones_like(labels, dtype=torch.bool)
        text = None if config.masked_only else input_ids
        return following_tokens(labels, text, cast(Tensor, keep), config.ngram_size)


def _score(
    heads: FutureHeads,
    loss_weight: float,
    matrix: Tensor,
    bias: Tensor | None,
    states: Tensor,
    tokens: Tensor,
    smoothing: float,
) -> tuple[Tensor, list[Tensor]]:
    """Return the weighted sum of all losses at masked positions, and each head's sum, without a gradient.

    Args:
        states: (masked, d).
        tokens: (masked, N + 1), of `following_tokens`.
    """
    known = tokens[:, :-1].clamp(min=0)  # after a missing token there is no target
    rows = F.embedding(known, matrix.detach())
    own = heads.states(states, known.shape[1])  # all heads read the state of the masked position
    predicted = [heads.complete(n, own[:, n - 1], rows[:, :n]) for n in range(1, known.shape[1] + 1)]
    weights = ngram_weights(len(predicted), loss_weight)
    factors = torch.tensor(weights, dtype=torch.promote_types(states.dtype, torch.float32), device=states.device)
    total, losses = weighted_cross_entropy(
        torch.cat([states, *predicted]), matrix, tokens.T.flatten(), factors.repeat_interleave(len(states)), bias,
        label_smoothing=smoothing,
    )  # fmt: skip
    return total, list(losses.view(len(weights), -1).sum(dim=1))


def following_tokens(
    labels: Int[Tensor, "batch time"],
    text: Int[Tensor, "batch time"] | None,
    keep: Bool[Tensor, "batch time"],
    num_following: int,
) -> Int[Tensor, "masked following"]:
    """Return each masked token and the tokens that follow it, -100 where there is none, in the order of the text.

    Args:
        labels: The token at each masked position, -100 elsewhere.
        text: What the model reads; then the n-th token that follows is the n-th in the row. None: it is the n-th of
            those that are masked in the row.
        keep: True at text, false at padding, where there is no token.
        num_following: How many tokens after the masked one.

    >>> labels = torch.tensor([[-100, 7, -100, 9, -100]])
    >>> text = torch.tensor([[5, 0, 6, 0, 8]])
    >>> following_tokens(labels, text, torch.ones(1, 5, dtype=torch.bool), 2).tolist()
    [[7, 6, 9], [9, 8, -100]]
    >>> following_tokens(labels, None, torch.ones(1, 5, dtype=torch.bool), 2).tolist()
    [[7, 9, -100], [9, -100, -100]]
    """
    masked = labels != IGNORED
    rows, columns = masked.nonzero(as_tuple=True)
    if text is None:  # masked tokens, side by side at the left of their row
        width = int(masked.sum(dim=1).max()) if len(rows) else 0
        tokens = torch.full((len(labels), width), IGNORED, dtype=labels.dtype, device=labels.device)
        columns = masked.cumsum(dim=1)[masked] - 1
        tokens[rows, columns] = labels[masked]
    else:
        tokens = torch.where(masked, labels, text.to(labels.dtype)).masked_fill(~(keep | masked), IGNORED)
    steps = torch.arange(num_following + 1, device=labels.device)
    padded = F.pad(tokens, (0, num_following), value=IGNORED)
    found = padded[rows[:, None], columns[:, None] + steps]
    return found.masked_fill((found == IGNORED).cumsum(dim=1) > 0, IGNORED)  # a difference needs all tokens between
