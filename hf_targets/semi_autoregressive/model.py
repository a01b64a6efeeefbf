"""A causal language model that predicts the next N words at each position, by an LSTM on any backbone."""

import copy
from contextlib import nullcontext
from dataclasses import dataclass
from os import PathLike
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers import initialization as init
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_layers import GradientCheckpointingLayer
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
from hf_targets.curves.k_curves import curve_parts
from hf_targets.curves.sentence_curve import SentenceCurve
from hf_targets.maths.losses import IGNORED, weighted_cross_entropy
from hf_targets.semi_autoregressive.configuration import BASE_FIELDS, SemiAutoregressiveConfig
from hf_targets.semi_autoregressive.generation import BlockGenerationMixin


class BlockDecoder(GradientCheckpointingLayer):
    """Predicts the embeddings of the next N words from one hidden state, without reading any of these words.

    The hidden state is the first state of a one-layer LSTM, and is added to what it gives. Its steps are the words, or
    with a curve the control points, whose curve passes through the words' embeddings. With K > 1 curves the LSTM runs K
    times, each time after a token of the curve, and a network weighs the K results.

    With `residual` the sum is added to the hidden state behind a layer that begins as 0: a new decoder gives each word
    the backbone's prediction of the first.

    Args:
        config: `ngram_size`, `curve` and `residual`.
        width: Width of the hidden states and embeddings.
    Source: Heo and Choi, "Sentence Curve Language Models", appendix B.3 and figure 7. The paper does not say how the
        hidden state comes in, and what the LSTM reads: ours reads a learnt embedding of each step, and its cell begins
        with 0.
    """

    def __init__(self, config: SemiAutoregressiveConfig, width: int) -> None:
        super().__init__()
        self.num_words = config.ngram_size
        self.curve, self.curves = curve_parts(config.curve, width)
        num_steps = self.num_words if self.curve is None else self.curve.num_control_points(self.num_words)
        self.steps = nn.Parameter(torch.empty(num_steps, width))
        self.lstm = nn.LSTM(width, width, batch_first=True)
        # Departs: the paper names no sum and no layer behind the LSTM. Without the sum, the first state is forgotten
        # after a few of 18 steps; what an LSTM gives lies in (-1, 1), and embeddings do not
        self.project_out = (ZeroInitLinear if config.residual else nn.Linear)(width, width)
        self.residual = config.residual
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the embeddings of the steps at random; the layers initialise themselves."""
        init.normal_(self.steps, std=0.02)

    def forward(self, hidden: Tensor, count: int | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the predicted embeddings of words 1 to `count`, and the probabilities of K > 1 curves.

        Args:
            hidden: (rows, d), last hidden states.
            count: In [1, N]; None: N.
        Returns: (rows, count, d), and (rows, K) or None.
        """
        count = self.num_words if count is None else count
        # words do not depend on later ones, but all points of a curve belong to each word
        steps = self.steps[:count] if self.curve is None else self.steps
        inputs, state, probabilities = steps.to(hidden.dtype).expand(hidden.shape[0], -1, -1), hidden, None
        if self.curves is not None:
            inputs, state = self.curves(inputs), hidden.repeat_interleave(self.curves.num_curves, dim=0)
        states = self._run(inputs, state)
        if self.curves is not None:
            states, probabilities = self.curves.select(states)
        if self.curve is not None:
            states = self.curve.to_embeddings(states, self.num_words)[:, :count]
        # after the curve, where there are fewer rows: columns of B sum to 1, so it is the same as before the curve
        words = self.project_out(states + hidden[:, None])
        # Departs: the paper trains from random weights; on a trained backbone the decoder would have to learn its
        # prediction of the next word anew (SmolLM2: 3.6 nats, a new decoder 11.9)
        return (hidden[:, None] + words if self.residual else words), probabilities

    def _run(self, inputs: Tensor, state: Tensor) -> Tensor:
        if state.shape[0] == 0:
            return inputs  # no LSTM of torch takes an empty batch
        on_cpu = inputs.device.type == "cpu"  # where processors without bfloat16 have no LSTM for autocast
        with torch.autocast("cpu", enabled=False) if on_cpu else nullcontext():
            if on_cpu:
                inputs, state = (tensor.to(self.steps.dtype) for tensor in (inputs, state))
            if torch.compiler.is_exporting():  # torch's LSTM exports for one number of rows alone
                return self._unrolled(inputs, state)
            state = state[None].contiguous()
            return self.lstm(inputs, (state, torch.zeros_like(state)))[0]

    def _unrolled(self, inputs: Tensor, state: Tensor) -> Tensor:
        cell, states = torch.zeros_like(state), []
        for step in inputs.unbind(1):
            state, cell = torch.lstm_cell(step, (state, cell), *self.lstm.all_weights[0])
            states.append(state)
        return torch.stack(states, dim=1)


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
            hidden states, times a scale and with a soft cap.
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
        if isinstance(module, nn.LSTM | ZeroInitLinear) or module in (self.block_decoder, self.block_decoder.curves):
            cast(Any, module).reset_parameters()
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
            return weighted_cross_entropy(states, weight, words.flatten(), factors, bias, cap=to_logits.cap)

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
