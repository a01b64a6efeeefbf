"""A causal language model that predicts the next N words at each position, by an LSTM on any backbone."""

import copy
from dataclasses import dataclass
from os import PathLike
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers import initialization as init
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from hf_targets.backbones.alignment import steps_into_sequence
from hf_targets.backbones.call import Call
from hf_targets.backbones.checkpoint import StrictLoading
from hf_targets.backbones.new_parts import ZeroInitLinear
from hf_targets.backbones.output_matrix import OutputMap, find_output_scale, output_embedding, read_causal
from hf_targets.backbones.weight_access import num_rows
from hf_targets.backbones.wrapping import (
    WrapsBackbone,
    backbone_of,
    check_loading,
    is_trained,
    load_base,
    place_new_part,
    split_fields,
)
from hf_targets.curves.configuration import CurveConfig
from hf_targets.curves.sentence_curve import SentenceCurve
from hf_targets.maths.losses import IGNORED, weighted_cross_entropy
from hf_targets.semi_autoregressive.block_decoder import BlockDecoder
from hf_targets.semi_autoregressive.configuration import BASE_FIELDS, SemiAutoregressiveConfig
from hf_targets.semi_autoregressive.generation import BlockGenerationMixin


@dataclass
class SemiAutoregressiveOutput(CausalLMOutputWithPast):
    """The output of `SemiAutoregressiveForCausalLM`.

    Attributes:
        loss: The mean of the parts; None without labels.
        loss_parts: `word_1` to `word_N`, the cross-entropies of the n-th next word, each divided by the number of
            targets of the next word; detached.
        logits: (batch, time, vocab), of the next word; None if they were skipped.
        block_logits: (batch, time, N, vocab), of the next N words; None unless requested.
        word_nlls: (batch, N), summed over each row's positions; detached; None without labels.
        word_counts: (batch, N), the numbers of targets in these sums.
        curve_probabilities: (positions, K), of K > 1 predicted curves; None otherwise.
        last_hidden_state: (batch, time, d), what the LSTM begins with; None unless requested.
    """

    loss_parts: dict[str, Tensor] | None = None
    block_logits: Tensor | None = None
    word_nlls: Tensor | None = None
    word_counts: Tensor | None = None
    curve_probabilities: Tensor | None = None
    last_hidden_state: Tensor | None = None


class SemiAutoregressiveForCausalLM(WrapsBackbone, StrictLoading, BlockGenerationMixin, PreTrainedModel):
    """Any causal language model whose last hidden state begins an LSTM, which predicts the next N words at once.

    The words share the backbone's output matrix. They are predicted independently of each other, or with `curve` as
    points of a sentence curve, so that each depends on control points of all. The next word is predicted by the LSTM,
    too, with `residual` beginning with the backbone's own prediction. `torch.compile` breaks its graph at the LSTM.

    Args:
        config: The configuration of the LSTM, which contains that of the backbone.
        backbone: The model to wrap, used as it is; None makes one with random weights.
    Raises:
        ValueError: If the backbone has an encoder, or its logits are not its output embedding applied to its last
            hidden states, times a scale.
    Source: Heo and Choi, "Sentence Curve Language Models", section 5.4 and appendix B.3.
    """

    config_class = SemiAutoregressiveConfig
    new_part = "block_decoder"
    trained_by = "SemiAutoregressiveTrainer"
    _no_split_modules = ["BlockDecoder"]  # noqa: RUF012, as the base class has it

    def __init__(self, config: SemiAutoregressiveConfig, backbone: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        self.backbone = backbone_of(cast(PreTrainedConfig, config.backbone), backbone)
        if self.backbone.config.is_encoder_decoder:
            raise ValueError(f"{type(self.backbone).__name__} has an encoder; choose a causal model")
        scale = find_output_scale(self.backbone, read_causal, "input_ids")
        if scale is not None:
            config.output_scale = scale
        config.backbone = self.backbone.config
        self.block_decoder = BlockDecoder(config, self.get_output_embeddings().in_features)
        self.post_init()

    @classmethod
    def from_base(
        cls,
        base: PreTrainedModel | str | PathLike,
        *,
        backbone_kwargs: dict[str, Any] | None = None,
        **config: Any,
    ) -> Self:
        """Put a new block decoder on a causal language model.

        Args:
            base: A model, used as it is and not copied, or the name or path of one.
            backbone_kwargs: Passed to `AutoModelForCausalLM.from_pretrained` if `base` is a name or a path.
            config: `ngram_size`, `curve` and `residual`, which is True by default on a trained base: all words then
                begin with its prediction of the next. If `base` is a name or a path, also `dtype`, `device_map` and
                the other `LOADING_ARGUMENTS`, which `backbone_kwargs` may hold instead.
        Raises:
            ValueError: If a field is unknown or out of range, or the model cannot share its output matrix.
        """
        config, loading = split_fields(SemiAutoregressiveConfig, config, BASE_FIELDS)
        loading |= backbone_kwargs or {}
        check_loading(loading, base)
        base = load_base(base, loading)
        output_embedding(base)  # raises an error before anything is made
        if isinstance(base, SemiAutoregressiveForCausalLM):
            raise ValueError("the base model predicts blocks already; give its `.backbone` for a new block decoder")
        config.setdefault("residual", is_trained(base))
        own = SemiAutoregressiveConfig(backbone=copy.deepcopy(base.config), dtype=base.dtype, **config)
        if own.curve is not None:
            SentenceCurve(cast(CurveConfig, own.curve)).check(own.ngram_size)
        model = cls(own, backbone=base)
        place_new_part(model, base, "block_decoder")
        model.generation_config = copy.deepcopy(base.generation_config)
        return model.train(base.training)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.LSTM) or module is self.block_decoder or module is self.block_decoder.curves:
            cast(Any, module).reset_parameters()
        elif isinstance(module, ZeroInitLinear):
            init.zeros_(module.weight)
            init.zeros_(module.bias)
        else:
            super()._init_weights(module)

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
        output_block_logits: bool = False,
        output_last_hidden_state: bool = False,
        **kwargs: Any,
    ) -> SemiAutoregressiveOutput:
        """Compute logits of the next word, and with labels the loss of the next N words.

        Args:
            input_ids: (batch, time).
            attention_mask: (batch, time), 0 at padding on either side.
            position_ids: (batch, time). In packed rows they restart at 0 with each document, and no word is then
                predicted from another document.
            labels: (batch, time), unshifted. Labels of -100 are not targets. Neither is the first of a sequence.
            token_type_ids: (batch, time), for a backbone that takes them.
            num_items_in_batch: Divisor of every part of the loss; None uses the number of next-word targets here.
            logits_to_keep: Number of last positions, or a tensor of indices, for which to compute logits; 0 means all.
            skip_logits: Whether to skip the logits; None skips them in training with labels.
            output_block_logits: Whether to return logits of all N words, too.
            output_last_hidden_state: Whether to return the last hidden state.
            kwargs: Passed to the backbone, except `shift_labels` (batch, time): labels that are shifted already, which
                take precedence over `labels`.
        Raises:
            ValueError: If shapes do not fit, an id is outside the vocabulary, or `logits_to_keep` exceeds the text.
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
        to_logits = OutputMap.of(self.backbone, cast(SemiAutoregressiveConfig, self.config).output_scale)
        call.check_ids(num_rows(to_logits.layer))
        outputs = call.read(self.backbone)
        hidden, targets = cast(Tensor, outputs[0]), call.targets
        predicted = probabilities = None
        own: dict[str, Any] = {}
        if targets is not None:
            predicted, probabilities = self._predict(hidden)
            own = self._scores(to_logits, predicted, targets, call)
        if call.wants_logits(skip_logits, training=self.training):
            kept = call.kept
            if predicted is None:
                count = None if output_block_logits else 1
                words, probabilities = self._predict(hidden[:, kept], count)
            else:
                words = predicted[:, kept]
            own["logits"] = to_logits(words[:, :, 0])
            own["block_logits"] = to_logits(words) if output_block_logits else None
        return SemiAutoregressiveOutput(
            **own,
            past_key_values=outputs.get("past_key_values"),
            hidden_states=outputs.get("hidden_states"),
            attentions=outputs.get("attentions"),
            curve_probabilities=probabilities,
            last_hidden_state=hidden if output_last_hidden_state else None,  # pyright: ignore[reportArgumentType]
        )

    def block_logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of the next N words, (..., N, vocab), for last hidden states (..., d)."""
        scale = cast(SemiAutoregressiveConfig, self.config).output_scale
        logits = OutputMap.of(self.backbone, scale)(self.block_decoder(hidden.reshape(-1, hidden.shape[-1]))[0])
        return logits.view(*hidden.shape[:-1], *logits.shape[1:])

    def _predict(self, hidden: Tensor, count: int | None = None) -> tuple[Tensor, Tensor | None]:
        """Return predicted embeddings (batch, time, count, d) of hidden states (batch, time, d), and probabilities."""
        words, probabilities = self.block_decoder(hidden.flatten(0, 1), count)
        return words.unflatten(0, hidden.shape[:2]), probabilities

    def _scores(self, to_logits: OutputMap, predicted: Tensor, targets: Tensor, call: Call) -> dict[str, Any]:
        """Return the fields of the output that score predicted embeddings (batch, time, N, d)."""
        batch, time, num_words = predicted.shape[:3]
        steps = steps_into_sequence(batch, time, call.attention_mask, call.position_ids, targets.device)
        words = block_targets(targets, steps, num_words)
        factors = torch.full((words.numel(),), 1 / num_words, device=words.device)

        def losses(weight: Tensor, bias: Tensor | None, states: Tensor) -> tuple[Tensor, Tensor]:
            return weighted_cross_entropy(states, weight, words.flatten(), factors, bias)

        total, rows = to_logits.inside(losses, to_logits.scaled(predicted).flatten(0, 2))
        count, rows = call.count(targets), rows.view(words.shape)
        parts = rows.sum(dim=(0, 1)) / count
        return {
            "loss": total / count,
            "loss_parts": {f"word_{n}": part for n, part in enumerate(parts, start=1)},
            "word_nlls": rows.sum(dim=1),
            "word_counts": (words != IGNORED).sum(dim=1),
        }


def block_targets(targets: Tensor, steps: Tensor, num_words: int) -> Tensor:
    """Return the targets of the next N words of each position, (batch, time, N), -100 where there is none.

    Args:
        targets: (batch, time), the next word of each position, -100 where there is none.
        steps: (batch, time), of `steps_into_sequence`: words of another sequence are no targets.
        num_words: N.
    """
    later = []
    for n in range(num_words):
        kept = targets[:, n:].masked_fill(steps[:, n:] < n, IGNORED)
        later.append(nn.functional.pad(kept, (0, targets.shape[1] - kept.shape[1]), value=IGNORED))
    return torch.stack(later, dim=2)
