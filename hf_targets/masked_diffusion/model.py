"""A masked diffusion language model: text is masked token by token, and the model learns to take masks off."""

import copy
import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils.generic import ModelOutput

from hf_targets.backbones.backbone import output_embedding
from hf_targets.backbones.checkpoint import StrictLoading
from hf_targets.backbones.inputs import check_count, check_ids, check_segments
from hf_targets.backbones.weight_access import call_inside
from hf_targets.backbones.zero_init_linear import ZeroInitLinear
from hf_targets.curves.configuration import CurveConfig
from hf_targets.masked_diffusion.backbone import BackboneOutput, MdlmBackbone
from hf_targets.masked_diffusion.configuration import MdlmConfig, as_curve_config
from hf_targets.masked_diffusion.folding import fold_modulation
from hf_targets.masked_diffusion.generation import MaskedDiffusionGeneration
from hf_targets.masked_diffusion.inputs import check_attention, check_batch, check_mask
from hf_targets.masked_diffusion.noisy_batch import NoisyBatch
from hf_targets.masked_diffusion.published import PublishedLayout
from hf_targets.maths.losses import IGNORED, target_count, token_cross_entropy
from hf_targets.maths.noise import NoiseSchedule

IMPOSSIBLE = -1e6
"""The published model's logit of what cannot be: the mask as a clean token, another token where one is given."""


@dataclass
class MaskedDiffusionOutput(ModelOutput):
    """What `MdlmForMaskedDiffusion` returns, always.

    Attributes:
        loss: With labels: the negative evidence lower bound in nats a target, masked or not.
        loss_parts: `nelbo`, the same, detached.
        logits: (batch, length, vocab), log-probabilities of the clean tokens (SUBS); None where they were skipped.
        row_nelbos: (batch,), each row's bound, summed over its targets; detached.
        num_targets: (batch,), labels other than -100 of each row.
        canvas: (batch, length), what the model has read: the tokens of a text, some of them masked.
        timesteps: (batch,), the times at which they were masked, if there are labels.
        control_points: (batch, N, d), the predicted curve, from each row's first token on; None without a curve.
        curve_probabilities: (batch, K), of K predicted curves; None with one.
        hidden_states: If asked for, what each block reads, (batch, length, d), and what the output matrix reads, last.
            Blocks that run on a curve read its control points: (batch, N, d), or of K curves (batch x K, 1 + N, d).
        attentions: If asked for, the attention weights of each block, (batch, heads, length, length); of blocks on a
            curve likewise.
    """

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    logits: Tensor | None = None
    row_nelbos: Tensor | None = None
    num_targets: Tensor | None = None
    canvas: Tensor | None = None
    timesteps: Tensor | None = None
    control_points: Tensor | None = None
    curve_probabilities: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class MdlmForMaskedDiffusion(PublishedLayout, StrictLoading, MaskedDiffusionGeneration, PreTrainedModel):
    """A masked diffusion model with the SUBS parameterisation, plain or predicting sentence curves.

    SUBS: the mask has probability 0 as a clean token, and a token that is not masked stays what it is.

    Source: Sahoo et al., "Simple and Effective Masked Diffusion Language Models"; curves: Heo and Choi, section 4.2.
    """

    config_class = MdlmConfig
    base_model_prefix = "backbone"
    accepts_loss_kwargs = True  # the loss is divided by num_items_in_batch
    supports_gradient_checkpointing = True
    _no_split_modules = ["DitBlock"]  # noqa: RUF012, as the base class has it
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True

    def __init__(self, config: MdlmConfig) -> None:
        super().__init__(config)
        self.backbone = MdlmBackbone(config)
        self.post_init()

    @property
    def new_part(self) -> str | None:
        """The network that weighs several curves, which a model without has not; a single curve has no parameters."""
        return None if self.backbone.curves is None else "backbone.curves"

    @property
    def schedule(self) -> NoiseSchedule:
        """How fast tokens are masked."""
        config = cast(MdlmConfig, self.config)
        return NoiseSchedule(config.noise_schedule, config.sigma_min, config.sigma_max)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as the published program: modulation and output matrix 0, all else as torch does.

        Only modules with parameters of their own come here.
        """
        if isinstance(module, ZeroInitLinear):
            init.zeros_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.kaiming_uniform_(module.weight, a=math.sqrt(5))
        elif isinstance(module, nn.Linear):
            init.kaiming_uniform_(module.weight, a=math.sqrt(5))
            if module.bias is not None:
                bound = 1 / math.sqrt(module.in_features)
                init.uniform_(module.bias, -bound, bound)
        elif hasattr(module, "reset_parameters"):
            module.reset_parameters()  # pyright: ignore[reportCallIssue]
        elif isinstance(weight := getattr(module, "weight", None), nn.Parameter) and weight.dim() == 1:
            init.ones_(weight)  # of a normalisation

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the input embedding."""
        return self.backbone.vocab_embed

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the input embedding."""
        self.backbone.vocab_embed = cast(nn.Embedding, value)

    def get_output_embeddings(self) -> nn.Linear:
        """Return the output embedding."""
        return self.backbone.output_layer.linear

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the output embedding."""
        self.backbone.output_layer.linear = cast(ZeroInitLinear, new_embeddings)

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the vocabulary; the mask keeps its id.

        Raises:
            ValueError: If that id would no longer be in it.
        """
        mask_token_id = cast(int, cast(MdlmConfig, self.config).mask_token_id)
        if new_num_tokens is not None and new_num_tokens <= mask_token_id:
            raise ValueError(
                f"the vocabulary must hold mask_token_id={mask_token_id}, got new_num_tokens={new_num_tokens}; keep at "
                f"least {mask_token_id + 1}"
            )
        return super().resize_token_embeddings(new_num_tokens, *args, **kwargs)

    def with_curve(self, curve: CurveConfig | dict[str, Any] | None) -> "MdlmForMaskedDiffusion":
        """Return a copy that predicts another curve, or none, with the same weights: where fine-tuning begins.

        The tokens and the network of K > 1 curves are new, unless this model has as many.
        """
        config = copy.deepcopy(cast(MdlmConfig, self.config))
        config.curve = as_curve_config(copy.deepcopy(curve))
        model = MdlmForMaskedDiffusion(config).to(device=self.device, dtype=self.dtype)  # pyright: ignore
        own = model.state_dict()
        fits = {name: value for name, value in self.state_dict().items() if name in own}
        model.load_state_dict({name: value for name, value in fits.items() if value.shape == own[name].shape}, False)
        trained = {name: parameter.requires_grad for name, parameter in self.named_parameters()}
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(trained.get(name, True))
        return model.train(self.training)

    def fold_modulation(self) -> "MdlmForMaskedDiffusion":
        """Return a model of the same function whose constant modulation is inside its neighbours' weights.

        Raises:
            ValueError: If the modulation is not constant (`time_conditioning`), or folded already.
        """
        return fold_modulation(self)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        timesteps: Tensor | None = None,
        *,
        may_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        generator: torch.Generator | None = None,
        num_items_in_batch: Tensor | int | None = None,
        skip_logits: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> MaskedDiffusionOutput:
        """Predict the clean tokens of a canvas; with labels, return the bound that trains the model.

        loss = sum over rows and masked targets of weight(t) * -log p(label) / number of targets, where weight(t) =
        -alpha'(t) / (1 - alpha(t)), which is 1/t for the log-linear schedule (Sahoo et al. 2024).

        Args:
            input_ids: (batch, length). With labels and no `timesteps` a text, whose targets the model masks at times of
                its own (antithetic over the batch); else a canvas.
            attention_mask: (batch, length), 0 at padding, at either end.
            labels: (batch, length), the clean token, not shifted; -100 is no target.
            timesteps: (batch,), in (0, 1], when the canvas was masked. Needed without labels by a model with
                `time_conditioning`.
            may_mask: (batch, length), where the model may mask a text with labels: at all targets, and at tokens with
                label -100 whose loss does not count. None: at targets alone.
            token_type_ids: (batch, length), as BERT's tokenizer gives them, all 0: the model knows no second segment.
            generator: Of times and masks; None: the global one.
            num_items_in_batch: What the loss is divided by; None counts the targets, masked or not.
            skip_logits: Whether to leave the logits out; None leaves them out in training with labels.
            output_hidden_states: Whether to return them; None: as the configuration says.
            output_attentions: Whether to return them, which takes eager attention; None likewise.
        Raises:
            ValueError: If shapes do not agree, an id is out of range, a mask has holes, times are missing, or attention
                weights are asked of an attention that does not have them.
        """
        if return_dict is False:
            raise ValueError("return_dict=False is not supported: the output is always a MaskedDiffusionOutput")
        check_segments(token_type_ids)
        check_count(num_items_in_batch, has_labels=labels is not None)
        config = cast(MdlmConfig, self.config)
        check_batch(input_ids, labels, timesteps, may_mask)
        check_ids(input_ids, config.vocab_size, "input_ids")
        check_mask(attention_mask, input_ids)
        if labels is not None:
            check_ids(labels, config.vocab_size, "labels", IGNORED)
        batch = NoisyBatch.of(
            config,
            self.schedule,
            input_ids.long(),
            attention_mask=attention_mask,
            labels=None if labels is None else labels.long(),
            timesteps=timesteps,
            may_mask=may_mask,
            generator=generator,
        )
        wanted = self._wanted(output_hidden_states, output_attentions)
        states = self._states(batch.canvas, attention_mask, batch.timesteps, **wanted)
        skip_logits = self.training and labels is not None if skip_logits is None else skip_logits
        output = MaskedDiffusionOutput(
            logits=None if skip_logits else self._substitute(states.hidden, batch.canvas),
            canvas=batch.canvas,
            timesteps=batch.timesteps,
            control_points=states.control_points,
            curve_probabilities=states.curve_probabilities,
            hidden_states=states.hidden_states,
            attentions=states.attentions,
        )
        if batch.labels is not None:
            rows = batch.row_sums(self._masked_losses(states.hidden, batch.canvas, batch.labels))
            output.loss = rows.sum() / target_count(batch.labels, num_items_in_batch)
            output.loss_parts = {"nelbo": output.loss.detach().clone()}  # Trainer scales the loss in place
            output.row_nelbos, output.num_targets = rows.detach(), (batch.labels != IGNORED).sum(dim=1)
        return output

    def log_probabilities(
        self,
        canvas: Tensor,
        where: Tensor,
        *,
        attention_mask: Tensor | None = None,
        timesteps: Tensor | None = None,
    ) -> Tensor:
        """Return log p(clean token), (positions, vocab) in float32, at the masked positions of a canvas asked for.

        Args:
            canvas: (batch, length).
            where: (batch, length), true at the positions, which come out row by row.
            attention_mask: (batch, length), 0 at padding.
            timesteps: (batch,), for a model with `time_conditioning`.
        """
        hidden = self._states(canvas, attention_mask, timesteps).hidden
        return self._log_softmax(hidden[where])

    def _wanted(self, hidden_states: bool | None, attentions: bool | None) -> dict[str, bool]:
        """Return what is to be recorded, as asked for or else configured, once it is certain that it can be."""
        config = self.config
        attentions = bool(config.output_attentions if attentions is None else attentions)
        check_attention(config, attentions)
        hidden_states = bool(config.output_hidden_states if hidden_states is None else hidden_states)
        return {"output_hidden_states": hidden_states, "output_attentions": attentions}

    def _states(
        self, canvas: Tensor, attention_mask: Tensor | None, timesteps: Tensor | None, **wanted: bool
    ) -> BackboneOutput:
        if not cast(MdlmConfig, self.config).time_conditioning:
            sigma = torch.zeros(1, device=canvas.device)
        elif timesteps is None:
            raise ValueError("a model with time_conditioning needs timesteps, the time of each row's canvas in (0, 1]")
        else:
            sigma = self.schedule.sigma(timesteps)
        if attention_mask is not None:
            attention_mask = (attention_mask != 0).long()
        return self.backbone(canvas, attention_mask, sigma, **wanted)

    def _bias_without_mask(self, bias: Tensor) -> Tensor:
        """Return the output bias with the mask made impossible."""
        is_mask = torch.arange(len(bias), device=bias.device) == cast(MdlmConfig, self.config).mask_token_id
        return bias.to(torch.promote_types(bias.dtype, torch.float32)) + IMPOSSIBLE * is_mask

    def _log_softmax(self, hidden: Tensor) -> Tensor:
        def compute(weight: Tensor, bias: Tensor, hidden: Tensor) -> Tensor:
            logits = F.linear(hidden, weight)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            return (logits + self._bias_without_mask(bias)).log_softmax(dim=-1)

        return call_inside(output_embedding(self), compute, hidden)

    def _substitute(self, hidden: Tensor, canvas: Tensor) -> Tensor:
        """Return log-probabilities in which a token that is not masked is itself."""
        logits = self._log_softmax(hidden)
        given = (canvas != cast(MdlmConfig, self.config).mask_token_id)[..., None]
        own = torch.full_like(logits, IMPOSSIBLE).scatter(-1, canvas[..., None], 0.0)
        return torch.where(given, own, logits)

    def _masked_losses(self, hidden: Tensor, canvas: Tensor, labels: Tensor) -> Tensor:
        """Return -log p(label), (batch, length), where a target is masked; elsewhere SUBS makes it 0."""
        masked = (canvas == cast(MdlmConfig, self.config).mask_token_id) & (labels != IGNORED)
        output = output_embedding(self)

        def compute(weight: Tensor, bias: Tensor, hidden: Tensor, targets: Tensor) -> Tensor:
            return token_cross_entropy(hidden, weight, targets, self._bias_without_mask(bias))

        if torch.compiler.is_compiling():  # a compiled graph has no shapes that depend on values
            targets = labels.masked_fill(~masked, IGNORED).flatten()
            return call_inside(output, compute, hidden.flatten(0, 1), targets).view_as(labels)
        losses = call_inside(output, compute, hidden[masked], labels[masked])
        return torch.zeros(labels.shape, dtype=losses.dtype, device=losses.device).masked_scatter(masked, losses)
