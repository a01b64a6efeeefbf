"""Text for a source by Gaussian diffusion: embeddings of the text become noise, and a decoder predicts them again."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import can_return_tuple

from hf_targets.backbones.checkpoint import StrictLoading
from hf_targets.backbones.inputs import can_look, check_attention_mask, check_count, check_ids, check_integers
from hf_targets.backbones.output_matrix import output_embedding
from hf_targets.backbones.recorded_states import NOTHING, Wanted
from hf_targets.backbones.weight_access import call_inside, execution_device
from hf_targets.gaussian_diffusion.backbone import (
    DifformerDecoder,
    DifformerEncoder,
    DifformerOutput,
    Prediction,
    Source,
)
from hf_targets.gaussian_diffusion.configuration import DifformerConfig
from hf_targets.gaussian_diffusion.future_embeddings import (
    FutureEmbeddings,
    HeadSettings,
    squared_errors,
    weighted_errors,
)
from hf_targets.gaussian_diffusion.generation import GaussianGeneration
from hf_targets.gaussian_diffusion.initialization import BERT_DEVIATION, draw, draw_as_difformer, draw_as_dinoiser
from hf_targets.gaussian_diffusion.layers import LengthPredictor
from hf_targets.gaussian_diffusion.process import DiscreteProcess, Process, process_of
from hf_targets.gaussian_diffusion.published import PublishedDifformer
from hf_targets.gaussian_diffusion.vocabulary import Vocabulary
from hf_targets.maths.ensemble import mix_predictions
from hf_targets.maths.gaussian_noise import nearest_neighbour_deviation
from hf_targets.maths.losses import IGNORED, target_count, weighted_cross_entropy
from hf_targets.maths.noise import drawn
from hf_targets.maths.torch_modes import break_graph

PARTS = ("diffusion", "words", "length")
"""The parts of the loss, in the order of `row_losses`."""


class DifformerForConditionalGeneration(
    PublishedDifformer, Vocabulary, StrictLoading, GaussianGeneration, PreTrainedModel
):
    """A Gaussian diffusion model of text: encoder, predictor of the length, and decoder; it may predict curves.

    loss = mean |z_hat - z_0|^2 + mean CE(words) + w mean CE(length), where z_0 are the text's embeddings, z_hat is what
    the decoder predicts from z_t, and the words' logits are the products of z_hat (`word_loss="anchor"`) or z_0
    (`"rounding"`) with all embeddings.

    Source: Gao et al. 2024, "Empowering Diffusion Models on the Embedding Space for Text Generation"; Heo and Choi,
        "Sentence Curve Language Models", equation (1).
    """

    config: DifformerConfig
    config_class = DifformerConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    accepts_loss_kwargs = True  # the loss is divided by num_items_in_batch
    supports_gradient_checkpointing = True
    made_by = "from_pretrained"
    _no_split_modules = ["MarianEncoderLayer", "MarianDecoderLayer"]  # noqa: RUF012, as the base class has it
    _tied_weights_keys = {"lm_head.weight": "embed_tokens.weight"}  # noqa: RUF012
    _supports_sdpa = True
    # no flash attention: Transformers would unpad the text of the decoder by the mask of the source

    def __init__(self, config: DifformerConfig) -> None:
        super().__init__(config)
        latent = cast(int, config.latent_size)
        # Departs: in a new DINOISER one embedding serves source, text and output, unless source_vocab_size is given
        self.embed_tokens = nn.Embedding(config.vocab_size, latent)
        self.encoder = DifformerEncoder(config)
        self.lengths = LengthPredictor(config)
        self.decoder = DifformerDecoder(config)
        heads = HeadSettings.of(config.multitoken)
        self.heads = None if heads is None else FutureEmbeddings(heads, config.hidden_size)
        self.lm_head = nn.Linear(latent, config.vocab_size, bias=False)
        self._last_noise_bound = torch.empty(0), torch.empty(0)  # a matrix, and its bound
        self.post_init()
        # one made of the configuration would lose our settings when it is loaded again
        ids = {name: getattr(config, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
        self.generation_config = GenerationConfig(**ids)

    @property
    def new_part(self) -> tuple[str, ...]:
        """The names of the parts that a target adds: heads, and the network that weighs K > 1 curves."""
        parts = {"heads": self.heads, "decoder.curves": self.decoder.curves}
        return tuple(name for name, part in parts.items() if part is not None)

    @property
    def process(self) -> Process:
        """How embeddings become noise, and the steps back."""
        return process_of(self.config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw a module's matrix: with deviation `initializer_range`, or as BERT's; z_0 with `latent_deviation`."""
        config = self.config
        deviation, of_latent = config.initializer_range, config.latent_deviation
        if module is self.embed_tokens and (deviation or of_latent):
            deviation = (of_latent or 1.0) * cast(int, config.latent_size) ** -0.5
        draw(module, deviation or BERT_DEVIATION)

    @torch.no_grad()
    @init.guard_torch_init_functions()
    def initialize_weights(self) -> None:
        """Draw what was not loaded: with `initializer_range`, or as the preset's program does."""
        super().initialize_weights()
        if self.config.initializer_range is None:
            (draw_as_difformer if self.config.preset == "difformer" else draw_as_dinoiser)(self)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        timesteps: Tensor | Sequence[float] | None = None,
        noise: Tensor | None = None,
        self_condition: bool | None = None,
        generator: torch.Generator | None = None,
        num_items_in_batch: Tensor | int | None = None,
        skip_logits: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **others: Any,
    ) -> DifformerOutput:
        """Read a source; with labels, also make noise of the text, predict it again, and return the loss.

        Args:
            input_ids: (batch, source).
            attention_mask: (batch, source), 0 at padding. None: where there is no padding token.
            labels: (batch, time), the text with its end token; -100 after it. Labels are not shifted.
            timesteps: (batch,), the times of the noise: steps in [0, T), or with a continuous schedule numbers in
                [.001, 1]. None: they are drawn.
            noise: (batch, time, latent), of variance 1. None: it is drawn.
            self_condition: With `self_conditioning="half"`, whether the decoder reads its own prediction. None: drawn.
            generator: Draws what is not given; None: the global one.
            num_items_in_batch: Divides the loss; None: the number of targets.
            skip_logits: Whether to leave out the logits; None: only in training mode with labels.
            output_hidden_states, output_attentions: Whether to return them; weights need eager attention. None: as the
                configuration says.
            others: What adapters give to any model of pairs, such as `decoder_input_ids`; all must be None.
        Raises:
            ValueError: If shapes do not agree, an id is out of range, or labels have -100 before a token.
        """
        if unread := [name for name, value in others.items() if value is not None]:
            raise ValueError(f"a Gaussian diffusion model reads input_ids and labels, and no {', '.join(unread)}")
        if input_ids is None:
            raise ValueError("a Gaussian diffusion model reads a source; give input_ids")
        check_count(num_items_in_batch, has_labels=labels is not None)
        wanted = Wanted.of(self.config, output_hidden_states, output_attentions)
        source = self.encode(input_ids, attention_mask, wanted)
        length_logits = self.lengths(source.hidden, source.mask)
        of_source: dict[str, Any] = {
            "length_logits": length_logits,
            "encoder_last_hidden_state": source.hidden,
            "encoder_hidden_states": source.hidden_states,
            "encoder_attentions": source.attentions,
        }
        if labels is None:
            return DifformerOutput(**of_source)
        config, process = self.config, self.process
        _check_labels(config, labels, input_ids)
        is_target = labels != IGNORED
        ids = labels.masked_fill(~is_target, cast(int, config.pad_token_id))
        first = torch.arange(ids.shape[1], device=ids.device) == 0
        clean, keep = self.embedded(ids), is_target | first  # a row without a target attends to its first pad
        if timesteps is None:
            timesteps = process.times(self._uniforms(len(ids), generator), self._least_time())
        timesteps = torch.as_tensor(timesteps, device=clean.device)
        if noise is None:
            noise = self._drawn(torch.randn, clean.shape, generator)
        _check_noise(process, timesteps, noise, clean)
        of_clean, of_noise = (factor[:, None, None].to(clean.dtype) for factor in process.deviations(timesteps))
        state = of_clean * clean + of_noise * noise.to(clean.dtype)
        if self_condition is None and config.self_conditioning == "half":
            self_condition = self._uniforms(1, generator).item() < 0.5
        passes = self._passes(state, process.told(timesteps), keep, source, reads_itself=bool(self_condition))
        counts, last = is_target.sum(dim=1), passes[-1]
        wide = torch.promote_types(length_logits.dtype, torch.float32)
        classes = self.lengths.classes(is_target, source.mask)
        # Departs: a row's length counts once for each of its tokens, so that parts of a step add up
        lengths = F.cross_entropy(length_logits.to(wide), classes, reduction="none") * counts
        if config.word_loss == "anchor":
            words = torch.stack([self._word_losses(one.embeddings, labels) for one in passes]).sum(dim=0)
        else:
            words = len(passes) * self._word_losses(clean, labels)
        diffusion = torch.stack([self._diffusion_losses(one, clean, is_target) for one in passes]).sum(dim=0)
        parts = [part.sum() / target_count(labels, num_items_in_batch) for part in (diffusion, words, lengths)]
        row_losses = None
        if not self.training:
            with torch.no_grad():
                errors = squared_errors(last.embeddings, clean).masked_fill(~is_target, 0.0).sum(dim=1)
                rows = errors, self._word_losses(last.embeddings, labels), lengths
                row_losses = torch.stack([row.detach().to(wide) for row in rows], dim=1)
        skips = self.training if skip_logits is None else skip_logits
        return DifformerOutput(
            loss=parts[0] + parts[1] + config.length_loss_weight * parts[2],
            logits=None if skips else self.word_logits(last.embeddings),
            loss_parts={name: part.detach().clone() for name, part in zip(PARTS, parts, strict=True)},
            predicted_embeddings=last.embeddings,
            row_losses=row_losses,
            curve_probabilities=last.curve_probabilities,
            decoder_hidden_states=last.hidden_states,
            decoder_attentions=last.attentions,
            cross_attentions=last.cross_attentions,
            **of_source,
        )

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        wanted: Wanted = NOTHING,
    ) -> Source:
        """Return what the decoder reads of a source; `wanted` says what to record in the encoder and the decoder."""
        config = self.config
        check_integers(input_ids=input_ids)
        if input_ids.dim() != 2 or not input_ids.numel():
            raise ValueError(f"input_ids must be (batch, source) with at least one token, got {tuple(input_ids.shape)}")
        own = config.source_vocab_size
        check_ids(input_ids, config.vocab_size if own is None else own, "input_ids")
        check_attention_mask(attention_mask, input_ids, None)
        _check_length(config, "a source", input_ids)
        mask = (input_ids != config.pad_token_id if attention_mask is None else attention_mask != 0).long()
        if can_look(mask) and not mask.any(dim=1).all():
            row = int((~mask.any(dim=1)).nonzero()[0])
            raise ValueError(f"each source must have a token that is not padding, and row {row} has none; leave it out")
        return self.encoder(self.embedded(input_ids) if own is None else input_ids, mask, wanted)

    def embedded(self, ids: Tensor) -> Tensor:
        """Return z_0 of token ids (batch, time), (batch, time, latent): sqrt(latent) times their embeddings."""
        config = self.config
        self.check_vocabulary()
        rows = self.embed_tokens(ids)
        return cast(int, config.latent_size) ** 0.5 * (
            F.normalize(rows, dim=-1) if config.normalize_embeddings else rows
        )

    def word_logits(self, embeddings: Tensor) -> Tensor:
        """Return the products (batch, time, vocab) of embeddings (batch, time, latent) with those of all words."""

        def compute(weight: Tensor, _: None, rows: Tensor) -> Tensor:
            return F.linear(rows, self._table(weight))

        return call_inside(output_embedding(self), compute, embeddings)

    def denoise(self, state: Tensor, previous: Tensor, told: Tensor, keep: Tensor, source: Source) -> Prediction:
        """Return the prediction of clean embeddings, as `DifformerDecoder.forward` does."""
        return self.decoder(state, previous, told, keep, source)

    def ensemble(self, prediction: Prediction, weight: float) -> Tensor:
        """Return predicted embeddings with those that heads predict from earlier positions mixed in, equation (13)."""
        if not weight:
            return prediction.embeddings
        if self.heads is None:
            raise ValueError(f"ensemble_weight={weight} needs heads; make the model with multitoken={{}}")
        predictions = self._of_heads(prediction.hidden, prediction.embeddings)
        exist = [torch.ones(one.shape[:2], dtype=torch.bool, device=one.device) for one in predictions]
        return mix_predictions(prediction.embeddings, predictions, exist, weight)

    def _of_heads(self, hidden: Tensor, embeddings: Tensor) -> list[Tensor]:
        assert self.heads is not None
        # a module among the arguments would be moved by what loads offloaded weights
        return self.heads(hidden, embeddings, lambda states: self.decoder.project_out_dim(states))

    def _passes(
        self, state: Tensor, told: Tensor, keep: Tensor, source: Source, *, reads_itself: bool
    ) -> list[Prediction]:
        """Return the predictions that are trained: one, or with `self_conditioning="both"` two."""
        previous = torch.zeros_like(state)
        if self.config.self_conditioning == "both":
            first = self.denoise(state, previous, told, keep, source)
            return [first, self.denoise(state, first.embeddings.detach(), told, keep, source)]
        if reads_itself:
            with torch.no_grad():
                previous = self.denoise(state, previous, told, keep, source).embeddings
        return [self.denoise(state, previous, told, keep, source)]

    def _diffusion_losses(self, prediction: Prediction, clean: Tensor, is_target: Tensor) -> Tensor:
        """Return the squared errors of each row, summed over its targets, (batch,), those of heads included."""
        if self.config.curve_loss == "control_points":  # lemma 4.3 of Heo and Choi, equation (5)
            wide = torch.promote_types(prediction.embeddings.dtype, torch.float32)
            errors = (prediction.embeddings.to(wide) - clean.to(wide)).masked_fill(~is_target[..., None], 0.0)
            assert self.decoder.curve is not None
            points = self.decoder.curve.to_control_points(errors, is_target.sum(dim=1).clamp(min=1))
            own = points.square().mean(dim=-1).sum(dim=1)
        else:
            own = squared_errors(prediction.embeddings, clean).masked_fill(~is_target, 0.0).sum(dim=1)
        if self.heads is None:
            return own
        alpha = cast(dict, self.config.multitoken)["loss_weight"]
        return weighted_errors(own, self._of_heads(prediction.hidden, clean.detach()), clean, is_target, alpha)

    def _word_losses(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropies of each row's words at embeddings, summed over its targets, (batch,)."""
        is_target = labels != IGNORED
        smoothing = cast(float, self.config.label_smoothing) if self.training else 0.0

        def compute(weight: Tensor, _: None, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            weights = torch.ones(len(targets), device=rows.device)
            return weighted_cross_entropy(rows, self._table(weight), targets, weights, label_smoothing=smoothing)

        total, losses = call_inside(output_embedding(self), compute, embeddings[is_target], labels[is_target])
        words = torch.zeros(labels.shape, dtype=losses.dtype, device=losses.device).masked_scatter(is_target, losses)
        return words.sum(dim=1) + (total - total.detach()) / len(labels)  # only the total has a gradient

    def _table(self, weight: Tensor) -> Tensor:
        if not self.config.normalize_embeddings:
            return weight
        return cast(int, self.config.latent_size) ** 0.5 * F.normalize(weight, dim=-1)

    def _least_time(self) -> Tensor | float:
        if not self.config.clip_noise:
            return 0.0
        return call_inside(output_embedding(self), self._noise_bound)

    @break_graph
    @torch.no_grad()
    def _noise_bound(self, weight: Tensor, _: None) -> Tensor:
        """Return the least noise that moves a word to another; it is computed again when the matrix has changed."""
        # rows are compared: fused optimizers and writes to `.data` do not increase torch's version counters
        kept, bound = self._last_noise_bound
        if kept.device != weight.device or not torch.equal(kept, weight):
            kept, bound = weight.clone(), nearest_neighbour_deviation(self._table(weight))
            self._last_noise_bound = kept, bound
        return bound

    def _uniforms(self, count: int, generator: torch.Generator | None) -> Tensor:
        return self._drawn(torch.rand, (count,), generator)

    def _drawn(self, draw: Any, shape: Any, generator: torch.Generator | None) -> Tensor:
        return drawn(draw, shape, generator, execution_device(self))


class DifformerModel(DifformerForConditionalGeneration):
    """The class that `AutoModel` loads: it returns what the decoder reads of a source."""

    @can_return_tuple
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> BaseModelOutput:
        """Return the encoder's last hidden states, (batch, source, hidden), and what else is asked for."""
        source = self.encode(input_ids, attention_mask, Wanted.of(self.config, output_hidden_states, output_attentions))
        return BaseModelOutput(
            last_hidden_state=cast(Any, source.hidden),
            hidden_states=cast(Any, source.hidden_states),
            attentions=cast(Any, source.attentions),
        )


def _check_labels(config: DifformerConfig, labels: Tensor, input_ids: Tensor) -> None:
    """Check that labels are texts, one for each source, with -100 only after their ends."""
    check_integers(labels=labels)
    if labels.dim() != 2 or len(labels) != len(input_ids) or not labels.numel():
        raise ValueError(f"labels must be ({len(input_ids)}, time), a row for each source, got {tuple(labels.shape)}")
    check_ids(labels, config.vocab_size, "labels", IGNORED)
    _check_length(config, "a text", labels)
    is_target = labels != IGNORED
    if can_look(labels) and (is_target[:, 1:] & ~is_target[:, :-1]).any():
        raise ValueError("labels may be -100 after the end of a text only, got -100 before a token; pad on the right")


def _check_noise(process: Process, timesteps: Tensor, noise: Tensor, clean: Tensor) -> None:
    """Check times (batch,) and noise for embeddings (batch, time, latent)."""
    if timesteps.shape != clean.shape[:1] or noise.shape != clean.shape:
        raise ValueError(
            f"timesteps must be ({len(clean)},) and noise {tuple(clean.shape)}, got {tuple(timesteps.shape)} and "
            f"{tuple(noise.shape)}"
        )
    if can_look(timesteps):
        least, most = process.bounds
        if not ((timesteps >= least) & (timesteps <= most)).all():
            raise ValueError(f"timesteps must be in [{least:g}, {most:g}], got {timesteps.tolist()}")
        if isinstance(process, DiscreteProcess) and (timesteps != timesteps.floor()).any():
            raise ValueError(f"timesteps must be whole, as the schedule has steps, got {timesteps.tolist()}")


def _check_length(config: DifformerConfig, what: str, ids: Tensor) -> None:
    limit = config.max_position_embeddings
    if ids.shape[1] > limit:
        raise ValueError(f"{what} must fit into the model's {limit} positions, got {ids.shape[1]} tokens; cut it")
