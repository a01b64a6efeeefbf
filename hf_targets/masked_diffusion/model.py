"""A masked diffusion language model: tokens of a text are masked at random, and the model predicts them."""

import copy
import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import ModelOutput, can_return_tuple

from hf_targets.backbones.checkpoint import StrictLoading
from hf_targets.backbones.inputs import check_count, check_kept_ids, check_segments
from hf_targets.backbones.new_parts import check_no_adapters
from hf_targets.backbones.output_matrix import output_embedding
from hf_targets.backbones.recorded_states import NOTHING, Wanted
from hf_targets.backbones.weight_access import call_inside, is_readable, num_rows
from hf_targets.backbones.wrapping import backbone_of, place_new_part
from hf_targets.curves.configuration import CurveConfig, as_curve_config
from hf_targets.masked_diffusion.backbone import BackboneOutput, MdlmBackbone
from hf_targets.masked_diffusion.causal import CausalReading, MadeFromCausal, check_reading
from hf_targets.masked_diffusion.configuration import MdlmConfig
from hf_targets.masked_diffusion.generation import MaskedDiffusionGeneration
from hf_targets.masked_diffusion.noisy_batch import NoisyBatch, at_positions
from hf_targets.masked_diffusion.published import PublishedMdlm
from hf_targets.maths.losses import IGNORED, target_count, weighted_cross_entropy
from hf_targets.maths.noise import NoiseSchedule

IMPOSSIBLE = -1e6
"""The published model's logit of impossible tokens: of the mask, and where a token is given, of all other tokens."""


@dataclass
class MaskedDiffusionOutput(ModelOutput):
    """The output of `MdlmForMaskedDiffusion`, whatever its arguments are.

    Attributes:
        loss: The negative evidence lower bound, in nats for each target, masked or not; None without labels.
        loss_parts: `nelbo`, the same value, detached; None without labels.
        logits: (batch, length, vocab), log-probabilities of the clean tokens (SUBS); None if they were skipped.
        row_nelbos: (batch,), the bound of each row, summed over its targets; detached; None without labels.
        num_targets: (batch,), the number of labels of each row that are not -100 and not padding; None without labels.
        canvas: (batch, length), the input of the network: the tokens of a text, some of them masked.
        timesteps: (batch,), the times at which the rows were masked, of packed rows (texts,); None if there are neither
            labels nor times.
        control_points: (batch, N, d), the predicted curve, which begins at the row's first token; None without a curve.
        curve_probabilities: (batch, K), the probabilities of K > 1 predicted curves; None otherwise.
        hidden_states: The input of each block, (batch, length, d), then the input of the output matrix; None if not
            requested. The input of blocks on a curve is its control points: (batch, N, d), or with K > 1 curves
            (batch x K, 1 + N, d).
        attentions: The attention weights of each block, (batch, heads, length, length); None if not requested. For
            blocks on a curve, batch and length are those of their input.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    row_nelbos: Tensor | None = None
    num_targets: Tensor | None = None
    canvas: Tensor | None = None
    timesteps: Tensor | None = None
    control_points: Tensor | None = None
    curve_probabilities: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class MdlmForMaskedDiffusion(PublishedMdlm, MadeFromCausal, StrictLoading, MaskedDiffusionGeneration, PreTrainedModel):
    """A masked diffusion model with the SUBS parameterisation, which may predict sentence curves.

    SUBS: the mask token has probability 0, and at an unmasked position the given token has probability 1. The layers
    are those of the published model, or those of a causal language model (`from_causal`).

    Source: Sahoo et al., "Simple and Effective Masked Diffusion Language Models"; curves: Heo and Choi, section 4.2.
    """

    config: MdlmConfig
    config_class = MdlmConfig
    base_model_prefix = "backbone"
    made_by = "from_causal"
    new_parts = ("reading.step",)  # where annealing begins with this training
    _keys_to_ignore_on_load_unexpected = [r"^reading\.step$"]  # noqa: RUF012, as the base class has it; it has ended
    accepts_loss_kwargs = True  # the loss is divided by num_items_in_batch
    supports_gradient_checkpointing = True
    _no_split_modules = ["DitBlock"]  # noqa: RUF012, as the base class has it
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True

    def __init__(self, config: MdlmConfig, backbone: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        self.reading = None
        if config.backbone is None:
            self.backbone: Any = MdlmBackbone(config)
        else:
            self.backbone = backbone_of(cast(PreTrainedConfig, config.backbone), backbone)
            self.reading = CausalReading(config)
            config.output_scale = check_reading(self) or config.output_scale
            config.backbone = self.backbone.config
            config._attn_implementation = self.backbone.config._attn_implementation
        self.post_init()

    @property
    def new_part(self) -> str | None:
        """The name of what is new beside a base model: the network that weighs K > 1 curves, a count; None: nothing."""
        if self.reading is not None:
            return "reading" if self.reading.state_dict() else None
        return None if self.backbone.curves is None else "backbone.curves"

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        """The tied weights of a causal model inside, by their names here."""
        tied = {} if self.reading is None else self.backbone.all_tied_weights_keys
        return {f"backbone.{a}": f"backbone.{b}" for a, b in tied.items()}

    @property
    def schedule(self) -> NoiseSchedule:
        """The noise schedule: how fast tokens are masked."""
        return NoiseSchedule(self.config.noise_schedule)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as the published program does: modulation and output matrix with 0, all other weights as torch.

        Transformers calls this only for modules that have parameters of their own.
        """
        if isinstance(module, nn.Embedding):
            init.kaiming_uniform_(module.weight, a=math.sqrt(5))
        elif hasattr(module, "reset_parameters"):
            cast(Any, module).reset_parameters()

    def get_output_embeddings(self) -> nn.Linear:
        """Return the output embedding."""
        return self.backbone.get_output_embeddings()

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the output embedding."""
        self.backbone.set_output_embeddings(new_embeddings)

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the vocabulary. The mask token keeps its id.

        Raises:
            ValueError: If the new vocabulary is too small for that id.
        """
        check_kept_ids(self.config, new_num_tokens, "mask_token_id")
        if self.reading is None:
            return super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        embedding = self.backbone.resize_token_embeddings(new_num_tokens, *args, **kwargs)
        self.config.vocab_size = num_rows(embedding)
        if new_num_tokens is not None:
            self.vocab_size = self.config.vocab_size  # as Transformers' models have it then
        return embedding

    def with_curve(self, curve: CurveConfig | dict[str, Any] | None) -> "MdlmForMaskedDiffusion":
        """Return a copy with the same weights that predicts another curve, or none; use it to start fine-tuning.

        The curve tokens and the scoring network of K > 1 curves are new, unless this model also has K curves.

        Raises:
            ValueError: If a layer has an adapter, or weights are offloaded or sharded.
        """
        check_no_adapters(self, "with_curve copies the weights")
        if not is_readable(self):
            raise ValueError("with_curve copies the weights, and some are offloaded or sharded; load the model whole")
        config = copy.deepcopy(self.config)
        config.curve = as_curve_config(copy.deepcopy(curve))
        if self.reading is None:
            model = MdlmForMaskedDiffusion(config).to(device=self.device, dtype=self.dtype)  # pyright: ignore
        else:
            model = MdlmForMaskedDiffusion(config, copy.deepcopy(self.backbone))
            place_new_part(model, model.backbone, "reading")
        own = model.state_dict()
        fits = {name: value for name, value in self.state_dict().items() if name in own}
        model.load_state_dict({name: value for name, value in fits.items() if value.shape == own[name].shape}, False)
        trained = {name: parameter.requires_grad for name, parameter in self.named_parameters()}
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(trained.get(name, True))
        return model.train(self.training)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        timesteps: Tensor | None = None,
        *,
        may_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        generator: torch.Generator | None = None,
        num_items_in_batch: Tensor | int | None = None,
        skip_logits: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        inputs_embeds: None = None,
        use_cache: bool | None = None,
    ) -> MaskedDiffusionOutput:
        """Predict the clean tokens of a canvas; with labels, also return the bound that trains the model.

        loss = sum over rows and masked targets of weight(t) * -log p(label) / number of targets, where weight(t) =
        -alpha'(t) / (1 - alpha(t)), which is 1/t for the log-linear schedule (Sahoo et al. 2024).

        Args:
            input_ids: (batch, length). With labels and without `timesteps`: a clean text, which the model masks at
                times that it draws (antithetic over the batch). Otherwise: a canvas, a text that is masked already.
            attention_mask: (batch, length), 0 at padding, which may be at both ends of a row.
            labels: (batch, length), the clean tokens, not shifted; -100 where a token is not a target.
            timesteps: (batch,), in (0, 1], the times at which the canvas was masked. A model with `time_conditioning`
                needs them if there are no labels.
            may_mask: (batch, length), true where the model may mask a clean text. It must be true at all targets; a
                masked token with label -100 adds no loss. None: the model masks only targets.
            position_ids: (batch, length), of packed rows, without padding; they start again at 0 with each text, whose
                tokens see each other and no others. `timesteps` are then (texts,), of each text. None: a row is a text.
            token_type_ids: (batch, length), as BERT's tokenizer returns them; all must be 0, as there are no segments.
            generator: Draws times and masks; None: the global generator.
            num_items_in_batch: Divides the loss; None: the number of targets, masked or not.
            skip_logits: Whether to leave out the logits; None: only in training mode with labels.
            output_hidden_states: Whether to return the hidden states; None: as configured.
            output_attentions: Whether to return the attention weights, for which attention must be eager; None: as
                configured.
            inputs_embeds, use_cache: For callers that give them to any model; must be None, or no cache.
        Raises:
            ValueError: If shapes do not agree, an id is out of range, a mask has holes, times are missing, rows are
                packed and the model has a curve, attention weights are requested and attention is not eager, or there
                are embeddings in place of ids or a cache is requested.
        """
        input_ids = _given_ids(input_ids, inputs_embeds, use_cache)
        check_segments(token_type_ids)
        check_count(num_items_in_batch, has_labels=labels is not None)
        batch = NoisyBatch.of(
            self.config,
            self.schedule,
            input_ids,
            attention_mask=attention_mask,
            labels=labels,
            timesteps=timesteps,
            may_mask=may_mask,
            position_ids=position_ids,
            generator=generator,
        )
        wanted = Wanted.of(self.config, output_hidden_states, output_attentions)
        states = self._states(batch.canvas, attention_mask, batch.timesteps, wanted, position_ids)
        skip_logits = self.training and labels is not None if skip_logits is None else skip_logits
        scores: dict[str, Any] = {}
        if batch.labels is not None:
            total, row_nelbos = self._masked_losses(states.hidden, batch)
            loss = total / target_count(batch.labels, num_items_in_batch)
            scores = {
                "loss": loss,
                "loss_parts": {"nelbo": loss.detach().clone()},  # Trainer scales the loss in place
                "row_nelbos": row_nelbos,
                "num_targets": (batch.labels != IGNORED).sum(dim=1),
            }
        return MaskedDiffusionOutput(
            **scores,
            logits=None if skip_logits else self._substitute(states.hidden, batch.canvas),
            canvas=batch.canvas,
            timesteps=batch.timesteps,
            control_points=states.control_points,
            curve_probabilities=states.curve_probabilities,
            hidden_states=states.hidden_states,
            attentions=states.attentions,
        )

    def log_probabilities(
        self,
        canvas: Tensor,
        where: Tensor,
        *,
        attention_mask: Tensor | None = None,
        timesteps: Tensor | None = None,
    ) -> Tensor:
        """Return log p(clean token), (positions, vocab) in float32, at given masked positions of a canvas.

        Args:
            canvas: (batch, length).
            where: (batch, length), true at these positions. They are returned row by row.
            attention_mask: (batch, length), 0 at padding.
            timesteps: (batch,), for a model with `time_conditioning`.
        """
        hidden = self._states(canvas, attention_mask, timesteps).hidden
        return self._log_softmax(hidden[where])

    def _states(
        self,
        canvas: Tensor,
        attention_mask: Tensor | None,
        timesteps: Tensor | None,
        wanted: Wanted = NOTHING,
        position_ids: Tensor | None = None,
    ) -> BackboneOutput:
        if not self.config.time_conditioning:
            sigma = torch.zeros(1, 1, device=canvas.device)
        elif timesteps is None:
            raise ValueError("a model with time_conditioning needs timesteps, the time of each row's canvas in (0, 1]")
        else:
            sigma = at_positions(self.schedule.sigma(timesteps), canvas, position_ids)
        if attention_mask is not None:
            attention_mask = (attention_mask != 0).long()
        if self.reading is not None:
            return self.reading(lambda: self.backbone, canvas, attention_mask, wanted, position_ids)
        return self.backbone(canvas, attention_mask, sigma, wanted, position_ids)

    def _bias_without_mask(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the output bias with -1e6 added for the mask token, which makes it impossible."""
        is_mask = torch.arange(len(weight), device=weight.device) == self.config.mask_token_id
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        return bias.to(torch.promote_types(bias.dtype, torch.float32)) + IMPOSSIBLE * is_mask

    def _log_softmax(self, hidden: Tensor) -> Tensor:
        def compute(weight: Tensor, bias: Tensor | None, hidden: Tensor) -> Tensor:
            logits = F.linear(hidden, weight)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            return (logits + self._bias_without_mask(weight, bias)).log_softmax(dim=-1)

        return call_inside(output_embedding(self), compute, hidden)

    def _substitute(self, hidden: Tensor, canvas: Tensor) -> Tensor:
        """Return log-probabilities in which each unmasked token has probability 1."""
        logits = self._log_softmax(hidden)
        given = (canvas != self.config.mask_token_id)[..., None]
        own = torch.full_like(logits, IMPOSSIBLE).scatter(-1, canvas[..., None], 0.0)
        return torch.where(given, own, logits)

    def _masked_losses(self, hidden: Tensor, batch: NoisyBatch) -> tuple[Tensor, Tensor]:
        """Return the sum of weight(t) * -log p(label), and that of each row, (batch,), without a gradient.

        SUBS makes them 0 at all positions but masked targets.
        """
        labels, weights = batch.labels, batch.weights
        assert labels is not None and weights is not None
        masked = (batch.canvas == self.config.mask_token_id) & (labels != IGNORED)
        weights = weights.expand(labels.shape)
        output = output_embedding(self)

        def compute(
            weight: Tensor, bias: Tensor | None, hidden: Tensor, targets: Tensor, weights: Tensor
        ) -> tuple[Tensor, Tensor]:
            return weighted_cross_entropy(hidden, weight, targets, weights, self._bias_without_mask(weight, bias))

        if torch.compiler.is_compiling():  # shapes in a compiled graph cannot depend on values
            targets = labels.masked_fill(~masked, IGNORED).flatten()
            total, losses = call_inside(output, compute, hidden.flatten(0, 1), targets, weights.flatten())
            losses = losses.view_as(labels)
        else:
            total, found = call_inside(output, compute, hidden[masked], labels[masked], weights[masked])
            losses = torch.zeros(labels.shape, dtype=found.dtype, device=found.device).masked_scatter(masked, found)
        return total, (losses * weights.to(losses.dtype)).sum(dim=1)


def _given_ids(input_ids: Tensor | None, inputs_embeds: Any, use_cache: bool | None) -> Tensor:
    if input_ids is None or inputs_embeds is not None or use_cache:
        raise ValueError(
            "a masked diffusion model masks token ids, and keeps no cache, as each position sees all others; give "
            "input_ids, and leave out inputs_embeds and use_cache"
        )
    return input_ids


class MdlmModel(MdlmForMaskedDiffusion):
    """The class that `AutoModel` loads: it returns the input of the output matrix, not logits."""

    @can_return_tuple
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        timesteps: Tensor | None = None,
        *,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        inputs_embeds: None = None,
        use_cache: bool | None = None,
    ) -> BaseModelOutput:
        """Return the last hidden states (batch, length, d); see `MdlmForMaskedDiffusion.forward` for the arguments."""
        input_ids = _given_ids(input_ids, inputs_embeds, use_cache)
        check_segments(token_type_ids)
        batch = NoisyBatch.of(self.config, self.schedule, input_ids, attention_mask=attention_mask, timesteps=timesteps)
        wanted = Wanted.of(self.config, output_hidden_states, output_attentions)
        states = self._states(batch.canvas, attention_mask, batch.timesteps, wanted)
        return BaseModelOutput(
            last_hidden_state=cast(Any, states.hidden),
            hidden_states=cast(Any, states.hidden_states),
            attentions=cast(Any, states.attentions),
        )
