"""A causal language model around any backbone, with heads that also predict the tokens after the next one."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any, Self, cast

from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Cache, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import CausalLMOutputWithPast

from hf_targets.backbones.backbone import check_backbone, output_embedding
from hf_targets.backbones.causal_call import CausalCall
from hf_targets.backbones.fingerprint import Fingerprint
from hf_targets.backbones.inputs import check_nll_weights
from hf_targets.backbones.weight_access import call_inside, num_rows
from hf_targets.backbones.wrapping import (
    WrapsBackbone,
    check_loading,
    keep_weights,
    load_base,
    place_new_part,
    split_fields,
)
from hf_targets.backbones.zero_init_linear import ZeroInitLinear
from hf_targets.maths.ensemble import mix_predictions
from hf_targets.maths.losses import ngram_weights
from hf_targets.multitoken.checkpoint import CheckpointMixin
from hf_targets.multitoken.configuration import BASE_FIELDS, MultiTokenConfig
from hf_targets.multitoken.future import known_tokens, read_future, score
from hf_targets.multitoken.generation import HeadsGenerationMixin
from hf_targets.multitoken.heads import FutureHeads
from hf_targets.multitoken.hidden_state_cache import HiddenStateCache


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


class MultiTokenForCausalLM(WrapsBackbone, CheckpointMixin, PreTrainedModel, HeadsGenerationMixin):
    """Any causal language model with N - 1 heads, which predict the second to the N-th next token.

    The hidden state at position i (it has read tokens 0..i) predicts token i+1 with the ordinary head, and token i+1+n
    with head n. With `target="embedding"` head n predicts the embedding of that token. With `target="difference"` it
    predicts a word difference; the sum of this and its conjugate is the predicted embedding.

    Args:
        config: The configuration of the heads, which contains that of the backbone.
        backbone: The model to wrap, used as it is; None makes one with random weights.
    Raises:
        ValueError: If the backbone's logits are not its output embedding applied to its last hidden states.
    Source: Heo et al., "Diverse Target Representations for Language Models with Word Difference Representations".
    """

    config_class = MultiTokenConfig
    new_part = "heads"
    trained_by = "MultiTokenTrainer"

    def __init__(self, config: MultiTokenConfig, backbone: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        self.backbone = AutoModelForCausalLM.from_config(config.backbone) if backbone is None else backbone
        check_backbone(self.backbone)
        config.backbone = self.backbone.config
        output = self.get_output_embeddings()
        self.heads = FutureHeads(config, width=output.in_features, vocab_size=num_rows(output))
        if backbone is not None:
            keep_weights(backbone)
        self.post_init()

    @classmethod
    def from_base(
        cls,
        base: PreTrainedModel | str | PathLike,
        *,
        backbone_kwargs: dict[str, Any] | None = None,
        **config: Any,
    ) -> Self:
        """Put new heads on a causal language model.

        Args:
            base: A model, used as it is and not copied, or the name or path of one.
            backbone_kwargs: Passed to `AutoModelForCausalLM.from_pretrained` where `base` is a name or a path.
            config: Fields of `MultiTokenConfig`: `ngram_size`, `target`, `loss_weight`, `ensemble_weight`, `head` ...
                If `base` is a name or a path, also `dtype`, `device_map`, `attn_implementation` and the other
                `LOADING_ARGUMENTS`, which `backbone_kwargs` may hold instead.
        Raises:
            ValueError: If a field is unknown or out of range, or if the model has no output embedding, already has
                heads, or cannot share its output matrix.
        """
        config, loading = split_fields(MultiTokenConfig, config, BASE_FIELDS)
        loading |= backbone_kwargs or {}
        check_loading(loading, base)
        base = load_base(base, loading)
        if isinstance(base, MultiTokenForCausalLM):
            raise ValueError("the base model has future-token heads already; give its `.backbone` for new ones")
        output = output_embedding(base)
        known = {"base_model_name_or_path": base.name_or_path or None, "dtype": base.dtype, **config}
        # A copy, as a composite configuration resets the attention implementation of its sub-configuration.
        model = cls(MultiTokenConfig(backbone=copy.deepcopy(base.config), **known), backbone=base)
        model.base_fingerprint = Fingerprint.of(base)
        place_new_part(model, base, "heads")
        model.heads.copy_outputs(output)
        model.generation_config = copy.deepcopy(base.generation_config)
        return model.train(base.training)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, ZeroInitLinear):
            for parameter in module.parameters():
                init.zeros_(parameter)
        else:
            super()._init_weights(module)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the backbone's vocabulary; heads that share its output matrix need no change.

        Raises:
            ValueError: If the heads have output matrices of their own, or draft tokens that would be dropped.
        """
        if self.heads.outputs is not None and (args or kwargs):
            raise ValueError(
                "heads with separate_output_heads=True cannot be resized; resize the base model, and put new heads on "
                "it with from_base"
            )
        size = args[0] if args else kwargs.get("new_num_tokens")
        if (
            self.heads.draft_vocabulary is not None
            and size is not None
            and size <= int(self.heads.draft_vocabulary.ids.max())
        ):
            raise ValueError(
                f"the heads draft tokens up to {int(self.heads.draft_vocabulary.ids.max())}, which a vocabulary of "
                f"{size} drops; put new heads on the resized base model with from_base"
            )
        return self.backbone.resize_token_embeddings(*args, **kwargs)

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
        return_dict: bool | None = None,
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
        smoothing: float = kwargs.pop("label_smoothing", 0.0)
        call = CausalCall.of(
            MultiTokenCausalLMOutput,
            kwargs,
            return_dict=return_dict,
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
        output = self.get_output_embeddings()
        call.check_ids(num_rows(output))
        check_nll_weights(nll_weights, has_labels=call.scored)
        if weight and past_key_values is not None:
            HiddenStateCache.check(past_key_values)
            if call.scored and past_key_values.get_seq_length():
                raise ValueError(
                    f"an ensemble scores labels of whole sequences only, got {past_key_values.get_seq_length()} "
                    "positions in a cache; leave out past_key_values or labels"
                )
        outputs = call.read(self.backbone)
        hidden: Tensor = outputs[0]
        targets = call.targets()
        future, exists, total, sums = [], [], None, []
        if call.scored or weight:
            cache = outputs.get("past_key_values") if weight else None
            known = known_tokens(cast(MultiTokenConfig, self.config), call, hidden, cache)
            # a single call with a gradient: with several, FSDP may lose the gradient of a tied matrix
            read = partial(read_future, self.heads, output)
            loss_weights = ngram_weights(self.config.ngram_size - 1, self.config.loss_weight)
            future, exists, total, sums = call_inside(output, read, *known, targets, loss_weights, smoothing)

        loss = loss_parts = nlls = logits = None
        if targets is not None:
            assert total is not None
            count = call.count(targets)
            loss = total / count
            loss_parts = {f"head_{n}" if n else "next_token": part / count for n, part in enumerate(sums)}
            if nll_weights is not None:
                nlls = score(output, hidden, future, exists, targets, nll_weights)
        if call.wants_logits(skip_logits, training=self.training):
            mixed = mix_predictions(hidden, future, exists, weight) if weight else hidden
            logits = output(mixed[:, call.kept])
        return MultiTokenCausalLMOutput(
            loss=loss,
            loss_parts=loss_parts,
            logits=logits,
            nlls=nlls,
            last_hidden_state=hidden if output_last_hidden_state else None,
            past_key_values=outputs.get("past_key_values"),
            hidden_states=outputs.get("hidden_states"),
            attentions=outputs.get("attentions"),
        )
