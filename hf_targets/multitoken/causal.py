"""A causal language model that predicts the words after the next one as well, around any backbone."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, Cache, DynamicCache, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import CausalLMOutputWithPast

from hf_targets.backbones.alignment import next_targets, steps_into_sequence
from hf_targets.backbones.backbone import check_backbone, output_embedding
from hf_targets.backbones.fingerprint import Fingerprint
from hf_targets.backbones.inputs import (
    check_attention_mask,
    check_count,
    check_ids,
    check_nll_weights,
    check_shapes,
    kept_positions,
)
from hf_targets.backbones.weight_access import call_inside, num_rows, output_cross_entropy
from hf_targets.backbones.wrapping import (
    WrapsBackbone,
    backbone_inputs,
    check_loading,
    keep_weights,
    load_base,
    place_new_part,
    split_fields,
)
from hf_targets.backbones.zero_linear import ZeroLinear
from hf_targets.maths.losses import IGNORED, ngram_loss, target_count, token_cross_entropy
from hf_targets.maths.mixing import mix_predictions
from hf_targets.multitoken.checkpoint import CheckpointMixin
from hf_targets.multitoken.configuration import BASE_FIELDS, MultiTokenConfig
from hf_targets.multitoken.generation import HeadsGenerationMixin
from hf_targets.multitoken.heads import FutureHeads
from hf_targets.multitoken.hidden_state_cache import PastPredictions


@dataclass
class MultiTokenCausalLMOutput(CausalLMOutputWithPast):
    """What `MultiTokenForCausalLM` returns, always.

    Attributes:
        loss: Equation (6), if there are labels.
        loss_parts: The terms of that sum, unweighted and detached: `next_word`, and `head_1` to `head_{N-1}`.
        logits: (batch, time, vocab) of the ensemble, if one is asked for; None where they were skipped.
        nlls: (batch, weights), the summed negative log-likelihood of each row's labels under each of `nll_weights`.
        last_hidden_state: (batch, time, d), what the output matrix and the heads are applied to, if asked for.
    """

    loss_parts: dict[str, Tensor] | None = None
    nlls: Tensor | None = None
    last_hidden_state: Tensor | None = None


class MultiTokenForCausalLM(WrapsBackbone, CheckpointMixin, PreTrainedModel, HeadsGenerationMixin):
    """Any causal language model with heads that predict the second next word, the third next, up to the N-th.

    With `target="difference"` head n predicts a word difference, which its conjugate turns into the word n steps after
    the next; with `target="embedding"` it predicts that word itself. The hidden state at position i (it has read tokens
    0..i) predicts token i+1 with the ordinary head, and token i+1+n with head n.

    Args:
        config: The heads' configuration with the backbone's inside.
        backbone: A model to wrap as it is; one with random weights is made without it.
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
                Where `base` is a name or a path also `dtype`, `device_map`, `attn_implementation` and the other
                `LOADING_ARGUMENTS`, which may stand in `backbone_kwargs` as well.
        Raises:
            ValueError: If a field is unknown or out of range, or the model has no output embedding, has heads already,
                or cannot share its output matrix.
        """
        config, loading = split_fields(MultiTokenConfig, config, BASE_FIELDS)
        loading |= backbone_kwargs or {}
        check_loading(loading, base)
        base = load_base(base, loading)
        if isinstance(base, MultiTokenForCausalLM):
            raise ValueError("the base model has future-word heads already; give its `.backbone` to put new ones on it")
        output = output_embedding(base)
        known = {"base_model_name_or_path": base.name_or_path or None, "dtype": base.dtype, **config}
        # A copy: a composite configuration resets the attention implementation of the one it is given.
        model = cls(MultiTokenConfig(backbone=copy.deepcopy(base.config), **known), backbone=base)
        model.base_fingerprint = Fingerprint.of(base)
        place_new_part(model, base, "heads")
        model.heads.copy_outputs(output)
        model.generation_config = copy.deepcopy(base.generation_config)
        return model.train(base.training)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, ZeroLinear):
            for parameter in module.parameters():
                init.zeros_(parameter)
        else:
            super()._init_weights(module)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the backbone's vocabulary, on which heads that share its output embedding do not depend.

        Raises:
            ValueError: If the heads have output matrices of their own.
        """
        if self.heads.outputs is not None and (args or kwargs):
            raise ValueError(
                "heads with output matrices of their own keep their vocabulary; resize the base model, and put new "
                "heads on it"
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
        """Predict.

        Args:
            input_ids: (batch, time).
            attention_mask: (batch, time), 0 at padding on either side.
            position_ids: (batch, time); in packed rows they start again at 0 with each document, and nothing is then
                predicted across that border. That attention stays within a document is up to the backbone: Llama's and
                most others' does without a cache, OPT's does not.
            labels: (batch, time), unshifted as everywhere in Transformers; -100 is not a target, nor is the first
                token of a sequence, before which there is only padding or another document.
            token_type_ids: (batch, time), for a backbone that takes them.
            ensemble_weight: Lambda of equation (13), in [0, 1]; None takes the configuration's.
            num_items_in_batch: What every part of the loss is divided by; None counts the next-word targets here.
            nll_weights: Ensemble weights to score the labels under, in one pass: see `nlls` of the output.
            logits_to_keep: Only the last so many positions' logits, or those of these indices; 0 is all.
            skip_logits: Whether to leave the logits out; None leaves them out in training with labels.
            output_last_hidden_state: Whether to return it.
            kwargs: Passed to the backbone, but for two. `shift_labels` (batch, time) are labels that are shifted
                already, the target of each position at its own index; they take precedence over `labels`.
                `label_smoothing` is the share of the uniform distribution in the targets of the loss.
        Raises:
            ValueError: If labels or the attention mask have another shape, labels are outside the vocabulary or missing
                beside `num_items_in_batch`, logits of positions beyond the text are asked for, a weight is outside
                [0, 1] or there is none, word differences lack `input_ids`, or an ensemble is asked for that there is
                not: of heads with `own_outputs`, with a cache that does not hold what its positions predicted, or with
                labels beside a filled one.
        """
        if return_dict is False:
            raise ValueError("return_dict=False is not supported: the output is always a MultiTokenCausalLMOutput")
        weight = self._check_weight(ensemble_weight, *(nll_weights or ()))
        # Trainer takes every parameter with "label" in its name for one that its batches have
        shifted: Tensor | None = kwargs.pop("shift_labels", None)
        smoothing: float = kwargs.pop("label_smoothing", 0.0)
        scored = labels is not None or shifted is not None
        check_count(num_items_in_batch, has_labels=scored)
        text = self._check_inputs(input_ids, inputs_embeds, labels, shifted)
        check_attention_mask(attention_mask, text, past_key_values)
        check_nll_weights(nll_weights, has_labels=scored)
        kept = kept_positions(logits_to_keep, text.shape[1])
        if weight and past_key_values is not None:
            PastPredictions.check(past_key_values)
            if scored and past_key_values.get_seq_length():
                raise ValueError("an ensemble scores labels of whole sequences; leave out past_key_values or labels")
        if scored:
            kwargs.setdefault("use_cache", False)  # with a cache, backbones do not keep packed documents apart
        outputs = self.backbone.base_model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            return_dict=True,
            **backbone_inputs(past_key_values=past_key_values, token_type_ids=token_type_ids),
            **kwargs,
        )
        hidden: Tensor = outputs[0]
        targets = next_targets(labels, attention_mask, position_ids, shifted=shifted) if scored else None
        future, exists, sums = [], [], []
        if scored or weight:
            cache = outputs.get("past_key_values") if weight else None
            known = self._known_words(hidden, input_ids, attention_mask, position_ids, cache)
            # one call with a gradient: of several, FSDP may lose that of a tied matrix
            future, exists, sums = call_inside(self.get_output_embeddings(), self._read, *known, targets, smoothing)

        loss = loss_parts = nlls = logits = None
        if targets is not None:
            count = target_count(targets, num_items_in_batch)
            parts = {f"head_{n}" if n else "next_word": total / count for n, total in enumerate(sums)}
            loss = ngram_loss(parts["next_word"], list(parts.values())[1:], self.config.loss_weight)
            loss_parts = {name: part.detach() for name, part in parts.items()}
            if nll_weights is not None:
                nlls = self._score(hidden, future, exists, targets, nll_weights)
        if skip_logits is None:
            skip_logits = self.training and scored
        if not skip_logits:
            mixed = mix_predictions(hidden, future, exists, weight) if weight else hidden
            logits = self.get_output_embeddings()(mixed[:, kept])
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

    def _check_inputs(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        labels: Tensor | None,
        shifted: Tensor | None,
    ) -> Tensor:
        text = check_shapes(input_ids, inputs_embeds, labels=labels, shift_labels=shifted)
        vocab_size = num_rows(self.get_output_embeddings())
        for name, ids in (("input_ids", input_ids), ("labels", labels), ("shift_labels", shifted)):
            if ids is not None:
                check_ids(ids, vocab_size, name, None if name == "input_ids" else IGNORED)
        return text

    def _known_words(
        self,
        hidden: Tensor,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: Cache | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the hidden states and words that the heads look at, and the steps of the positions read now.

        With a cache the first two go back to earlier positions, whose heads predict the targets of these.
        """
        batch, time, _ = hidden.shape
        words = torch.zeros_like(hidden[..., 0], dtype=torch.long) if input_ids is None else input_ids
        if self.config.target == "difference" and input_ids is None:
            raise ValueError(
                'heads with target="difference" need input_ids: the words between a position and its target are part '
                "of the prediction"
            )
        layer = None
        if isinstance(cache, DynamicCache):
            layer = PastPredictions.find(cache)
            if layer is None:
                layer = PastPredictions()
                cache.layers.append(layer)
        before = None if layer is None else layer.last_steps()
        steps = steps_into_sequence(batch, time, attention_mask, position_ids, hidden.device, before=before)
        if layer is not None:
            hidden, words, _ = layer.extend(hidden, words, steps, window=self.config.ngram_size - 1)
        return hidden, words, steps

    def _read(
        self,
        matrix: Tensor,
        bias: Tensor | None,
        hidden: Tensor,
        words: Tensor,
        steps: Tensor,
        targets: Tensor | None,
        smoothing: float,
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Return what the heads predict with the output matrix, which of it exists, and the summed losses.

        Entry n - 1 of the first two is head n's, (batch, time - n, d) and (batch, time - n), longer if a cache tells
        what earlier positions predicted; its last row predicts the target of the last position. Entry n of the losses
        is the sum of L_n of equation (5); there are none without targets.
        """
        time = steps.shape[1]
        past = hidden.shape[1] - time
        rows = F.embedding(words[:, 1:], matrix.detach()) if self.config.target == "difference" else None
        future = self.heads(hidden, rows, past)
        exists = [steps[:, time - said.shape[1] :] >= n for n, said in enumerate(future, start=1)]
        if targets is None:
            return future, exists, []
        kept = [targets[:, n:].masked_fill(~there, IGNORED) for n, there in enumerate(exists, start=1)]
        states = [predictions.flatten(0, 1) for predictions in (hidden[:, past:], *future)]
        labels = [part.flatten() for part in (targets, *kept)]
        if self.heads.outputs is None:  # one call over all rows: one gradient of the shared matrix
            joined = torch.cat(states), matrix, torch.cat(labels), bias
            losses = token_cross_entropy(*joined, label_smoothing=smoothing).split([len(part) for part in states])
        else:
            losses = [token_cross_entropy(states[0], matrix, labels[0], bias, label_smoothing=smoothing)]
            for n in range(1, len(states)):
                own = self.heads.output(n, self.get_output_embeddings())
                losses.append(output_cross_entropy(own, states[n], labels[n], label_smoothing=smoothing))
        return future, exists, [part.sum() for part in losses]

    @torch.no_grad()
    def _score(
        self, hidden: Tensor, future: list[Tensor], exists: list[Tensor], targets: Tensor, weights: Sequence[float]
    ) -> Tensor:
        scores = []
        for weight in weights:
            mixed = mix_predictions(hidden, future, exists, weight) if weight else hidden
            scores.append(output_cross_entropy(self.get_output_embeddings(), mixed, targets).sum(dim=1))
        return torch.stack(scores, dim=1)
