"""The Tensorized Transformer as a causal language model: layers, and an output matrix tied to the embeddings."""

import logging
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from hf_targets.backbones.call import Call
from hf_targets.backbones.inputs import check_prompt_mask
from hf_targets.backbones.weight_access import num_rows, weighted_output_cross_entropy
from hf_targets.tensorized_transformer.backbone import (
    TensorizedTransformerModel,
    TensorizedTransformerPreTrainedModel,
)
from hf_targets.tensorized_transformer.configuration import TensorizedTransformerConfig

logger = logging.getLogger(__name__)


@dataclass
class TensorizedTransformerCausalLMOutput(CausalLMOutputWithPast):
    """The output of `TensorizedTransformerForCausalLM`; `loss_parts` has the loss as `next_token`, detached."""

    loss_parts: dict[str, Tensor] | None = None


class TensorizedTransformerForCausalLM(TensorizedTransformerPreTrainedModel, GenerationMixin):
    """A language model whose attention is a product of queries, keys and values without a softmax.

    Each layer reads the last `config.segment_length` positions, in texts of any length, and its cache holds no more.
    With `config.paper_leaky` it is the published model, which reads the tokens that it predicts: it does not generate,
    and its perplexities are not comparable with those of causal models.

    Source: Ma et al., "A Tensorized Transformer for Language Modeling"; szhangtju/The-compression-of-Transformer.
    Departs: Causal by default, see `attention.TensorizedAttention`.
    """

    accepts_loss_kwargs = True  # the loss is divided by num_items_in_batch
    smooths_labels = True  # forward takes `label_smoothing`
    new_parts = ("lm_head.",)  # to a checkpoint of the base model
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012, as the base class has it

    def __init__(self, config: TensorizedTransformerConfig) -> None:
        super().__init__(config)
        self.model = TensorizedTransformerModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()
        if config.paper_leaky:
            logger.warning(
                "With paper_leaky=True a Tensorized Transformer reads the tokens that it predicts: do not compare its "
                "perplexities with those of causal models, and set paper_leaky=False to generate"
            )

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
    ) -> TensorizedTransformerCausalLMOutput:
        """Compute logits of the next token, and with labels the loss.

        Args:
            attention_mask: (batch, time), 0 at padding on either side.
            position_ids: (batch, time). In packed rows they restart at 0 with each document, which then does not read
                the one before, and whose first token is not predicted.
            past_key_values: Keys and values of earlier calls, with which each row goes on.
            labels: (batch, time), unshifted. Labels of -100 are not targets. Neither is the first of a sequence.
            token_type_ids: (batch, time), as some tokenizers return them; all must be 0.
            num_items_in_batch: Divisor of the loss; None uses the number of targets here.
            logits_to_keep: Number of last positions, or a tensor of indices, for which to compute logits; 0 means all.
            skip_logits: Whether to skip the logits; None skips them in training with labels.
            kwargs: Passed to `TensorizedTransformerModel`, except `shift_labels`, which are shifted already and go
                before `labels`, and `label_smoothing`. With labels there is no cache unless `use_cache=True` is given.
        Raises:
            ValueError: If shapes do not fit, an id is outside the vocabulary, or as `TensorizedTransformerModel` does.
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
            equal = torch.ones_like(targets, dtype=torch.float32)
            total, _ = weighted_output_cross_entropy(self.lm_head, hidden, targets, equal, label_smoothing=smoothing)
            loss = total / call.count(targets)
            parts = {"next_token": loss.detach().clone()}
        wants_logits = call.wants_logits(skip_logits, training=self.training)
        return TensorizedTransformerCausalLMOutput(
            loss=loss,  # pyright: ignore[reportArgumentType]
            logits=self.lm_head(hidden[:, call.kept]) if wants_logits else None,  # pyright: ignore[reportArgumentType]
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            loss_parts=parts,
        )

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate as `GenerationMixin` does; drafts are taken back from a `DynamicCache`."""
        check_prompt_mask(args[0] if args else None, kwargs)
        return super().generate(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue], a Protocol has more

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *args: Any, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Prepare the inputs of a step of generation, also for a model around this one; not if `paper_leaky`."""
        if cast(TensorizedTransformerConfig, self.config).paper_leaky:
            raise ValueError(
                "a model with paper_leaky=True reads the tokens that follow, and cannot generate what is not written "
                "yet; train one with paper_leaky=False"
            )
        return super().prepare_inputs_for_generation(  # pyright: ignore[reportAttributeAccessIssue]
            input_ids, *args, inputs_embeds=inputs_embeds, **kwargs
        )
