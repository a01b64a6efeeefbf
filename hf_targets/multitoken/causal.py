"""A causal language model around any backbone, with heads that also predict the tokens after the next one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from hf_targets.backbones.call import Call
from hf_targets.backbones.output_matrix import find_output_scale, read_causal
from hf_targets.multitoken.generation import HeadsGenerationMixin
from hf_targets.multitoken.model import MultiTokenModel


@dataclass
class MultiTokenCausalLMOutput(CausalLMOutputWithPast):
    """The output of `MultiTokenForCausalLM`, in every mode.

    Attributes:
        loss: The loss of equation (6); None without labels.
        loss_parts: The terms of that sum, unweighted and detached: `next_token`, and `head_1` to `head_{N-1}`.
        logits: (batch, time, vocab), those of the ensemble if its weight is above 0; None if they were skipped.
        nlls: (batch, weights), the summed negative log-likelihood of each row's labels under each of `nll_weights`.
        last_hidden_state: (batch, time, d), the input of the output matrix and the heads; None unless requested.
    """

    loss_parts: dict[str, Tensor] | None = None
    nlls: Tensor | None = None
    last_hidden_state: Tensor | None = None


class MultiTokenForCausalLM(MultiTokenModel, HeadsGenerationMixin):
    """Any causal language model with N - 1 heads, which predict the second to the N-th next token.

    The hidden state at position i (it has read tokens 0..i) predicts token i+1 with the ordinary head, and token i+1+n
    with head n. With `target="embedding"` head n predicts the embedding of that token. With `target="difference"` it
    predicts a word difference; the sum of this and its conjugate is the predicted embedding.

    Args:
        config: The configuration of the heads, which contains that of the backbone.
        backbone: The model to wrap, used as it is; None makes one with random weights.
    Raises:
        ValueError: If the backbone's logits are not its output embedding applied to its last hidden states, times a
            scale and with a bias.
    Source: Heo et al., "Diverse Target Representations for Language Models with Word Difference Representations".
    """

    sft_trainer = "MultiTokenSFTTrainer"

    @classmethod
    def _output_scale(cls, backbone: PreTrainedModel) -> float | None:
        if backbone.config.is_encoder_decoder:
            raise ValueError(f"{type(backbone).__name__} has an encoder; use MultiTokenForSeq2SeqLM for it")
        return find_output_scale(backbone, read_causal, "input_ids")

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
        ensemble_weight: float | None = None,
        num_items_in_batch: Tensor | int | None = None,
        nll_weights: Sequence[float] | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        output_last_hidden_state: bool = False,
        last_hidden_state: Tensor | None = None,
        **kwargs: Any,
    ) -> MultiTokenCausalLMOutput:
        """Compute logits, and with labels the loss.

        Args:
            input_ids: (batch, time).
            attention_mask: (batch, time), 0 at padding on either side.
            position_ids: (batch, time). In packed rows they restart at 0 with each document, and no token is then
                predicted from another document. Whether attention stays within a document depends on the backbone: in
                Llama and most others it does if there is no cache, in OPT it does not.
            labels: (batch, time), unshifted as everywhere in Transformers. Labels of -100 are not targets. Neither is
                the first token of a sequence, as only padding or another document precedes it.
            token_type_ids: (batch, time), for a backbone that takes them.
            ensemble_weight: Lambda of equation (13), in [0, 1]; None takes the configuration's.
            num_items_in_batch: Divisor of every part of the loss; None uses the number of next-token targets here.
            nll_weights: Ensemble weights under which to score the labels, in one pass: see `nlls` of the output.
            logits_to_keep: Number of last positions, or a tensor of indices, for which to compute logits; 0 means all.
            skip_logits: Whether to skip the logits; None skips them in training with labels.
            output_last_hidden_state: Whether to return the last hidden state.
            last_hidden_state: (batch, time, d), what an earlier call returned for these `input_ids`. The backbone is
                not run, and the loss is that of the heads alone: for a frozen backbone, computed once.
            kwargs: Passed to the backbone, except two. `shift_labels` (batch, time) are already shifted labels, with
                the target of each position at the index of that position; they take precedence over `labels`.
                `label_smoothing` is the share of the uniform distribution in the targets of the loss.
        Raises:
            ValueError: If labels or the attention mask have a wrong shape; labels are outside the vocabulary; there is
                `num_items_in_batch` but no labels; `logits_to_keep` exceeds the text; a weight is outside [0, 1];
                `nll_weights` is empty; or word differences lack `input_ids`. Also if an ensemble is requested of heads
                with `separate_output_heads`, with a cache that lacks earlier hidden states, or for labels together
                with a filled cache.
        """
        weight = self._check_weight(ensemble_weight, *(nll_weights or ()))
        call = Call.causal(
            kwargs,
            input_ids=input_ids,
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            labels=labels,
            token_type_ids=token_type_ids,
            num_items_in_batch=num_items_in_batch,
            logits_to_keep=logits_to_keep,
        )
        outputs, own = self._call(
            call,
            weight,
            nll_weights=nll_weights,
            skip_logits=skip_logits,
            output_last_hidden_state=output_last_hidden_state,
            last_hidden_state=last_hidden_state,
        )
        return MultiTokenCausalLMOutput(
            **own, hidden_states=outputs.get("hidden_states"), attentions=outputs.get("attentions")
        )
