"""The encoder of the source, and the decoder that predicts clean embeddings from noisy ones."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.masking_utils import create_bidirectional_mask
from transformers.models.marian.modeling_marian import MarianDecoderLayer, MarianEncoderLayer
from transformers.utils.generic import ModelOutput

from hf_targets.backbones.recorded_states import NOTHING, Wanted, recorded_weights
from hf_targets.curves.k_curves import curve_parts
from hf_targets.gaussian_diffusion.configuration import DifformerConfig
from hf_targets.gaussian_diffusion.layers import input_layer, output_layer, time_layer


@dataclass(frozen=True)
class Source:
    """What the decoder reads of the encoder.

    Attributes:
        hidden: (batch, source, hidden).
        mask: (batch, source), 0 at padding.
        wanted: What the decoder is to record, too.
        hidden_states: The input of each layer, and `hidden`; None if not wanted.
        attentions: The weights of each layer, (batch, heads, source, source); None if not wanted.
    """

    hidden: Tensor
    mask: Tensor
    wanted: Wanted = NOTHING
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None

    def repeated(self, times: int) -> "Source":
        """Return each row so many times."""
        hidden, mask = (rows.repeat_interleave(times, dim=0) for rows in (self.hidden, self.mask))
        return Source(hidden, mask, self.wanted)


@dataclass(frozen=True)
class Prediction:
    """What the decoder makes of noisy embeddings.

    Attributes:
        embeddings: (batch, time, latent), the prediction of z_0.
        hidden: (batch, time, hidden), the decoder's last states, at the tokens if heads or `hidden_states` are there.
        curve_probabilities: (batch, K), of K > 1 curves; None otherwise.
        control_points: (batch, points, latent), of the predicted curve; None without a curve.
        hidden_states: The input of each layer, (batch, positions, hidden), and `hidden`; None if not wanted. Layers
            have a position for each control point, and a row for each of K curves.
        attentions, cross_attentions: The weights of each layer at its own positions, (batch, heads, positions,
            positions), and at the source, (batch, heads, positions, source); None if not wanted.
    """

    embeddings: Tensor
    hidden: Tensor
    curve_probabilities: Tensor | None = None
    control_points: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None


@dataclass
class DifformerOutput(ModelOutput):
    """The output of `DifformerForConditionalGeneration`.

    Attributes:
        loss: The weighted sum of the parts; None without labels.
        loss_parts: `diffusion`, the squared errors of an embedding's dimensions, heads included; `words`, the
            cross-entropy of the words; `length`, that of a text's length. Each is divided by the number of targets, and
            detached. With `self_conditioning="both"` the first two are sums over both passes.
        logits: (batch, time, vocab), of the words at the predicted embeddings; None if they were skipped.
        length_logits: (batch, classes), of the differences between the lengths of text and source.
        predicted_embeddings: (batch, time, latent), the prediction of z_0; None without a text.
        row_losses: (batch, 3), what evaluations report, summed over each row's targets: squared errors of the last
            prediction, cross-entropies of the words there, and that of the length. None in training.
        curve_probabilities: (batch, K), of K > 1 predicted curves; None otherwise.
        encoder_last_hidden_state: (batch, source, hidden).
        encoder_hidden_states, encoder_attentions: As `Source` has them; None unless requested.
        decoder_hidden_states, decoder_attentions, cross_attentions: Of the last pass of the decoder, as `Prediction`
            has them; None unless requested, and without a text.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    length_logits: Tensor | None = None
    predicted_embeddings: Tensor | None = None
    row_losses: Tensor | None = None
    curve_probabilities: Tensor | None = None
    encoder_last_hidden_state: Tensor | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    encoder_attentions: tuple[Tensor, ...] | None = None
    decoder_hidden_states: tuple[Tensor, ...] | None = None
    decoder_attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None


class DifformerEncoder(nn.Module):
    """A Transformer with normalisation after each part, and learnt positions.

    It reads embeddings of latent width, or ids for which it has embeddings of its own.
    """

    def __init__(self, config: DifformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens, self.project_in_dim = None, None
        if config.source_vocab_size is None:
            self.project_in_dim = nn.Linear(cast(int, config.latent_size), config.hidden_size, bias=False)
        else:
            self.embed_tokens = nn.Embedding(config.source_vocab_size, config.hidden_size)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        marian = cast(Any, config)  # has the fields that Marian's layers read
        self.layers = nn.ModuleList([MarianEncoderLayer(marian) for _ in range(config.num_hidden_layers)])
        self.layer_norm = nn.LayerNorm(config.hidden_size) if config.encoder_final_norm else None

    def forward(self, source: Tensor, attention_mask: Tensor, wanted: Wanted = NOTHING) -> Source:
        """Return the hidden states of a source.

        Args:
            source: Embeddings (batch, source, latent); or ids (batch, source), if it has embeddings of its own.
            attention_mask: (batch, source), 0 at padding, which may be at both ends of a row.
            wanted: What to record.
        """
        positions = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)
        read = self.embed_tokens if self.project_in_dim is None else self.project_in_dim
        hidden = cast(nn.Module, read)(source) + self.embed_positions(positions)
        hidden = F.dropout(hidden, cast(float, self.config.dropout), self.training)
        mask = create_bidirectional_mask(self.config, hidden, attention_mask)
        states: list[Tensor] = []
        attentions = (cast(Any, layer).self_attn for layer in self.layers)
        with recorded_weights(attentions, wanted=wanted.attentions) as weights:
            for layer in self.layers:
                if wanted.hidden_states:
                    states.append(hidden)
                hidden = layer(hidden, mask)
        if self.layer_norm is not None:
            hidden = self.layer_norm(hidden)
        kept = (*states, hidden) if wanted.hidden_states else None
        return Source(hidden, attention_mask, wanted, kept, tuple(weights) if wanted.attentions else None)


class DifformerDecoder(nn.Module):
    """Predicts z_0 from z_t, the time, and its own last prediction; with a curve, its layers run on control points.

    Embeddings become control points before the first layer, P = E B^+, and predicted control points become embeddings
    after the last, E = P B.

    Source: Gao et al. 2024; curves: Heo and Choi, "Sentence Curve Language Models", section 4.2.
    """

    def __init__(self, config: DifformerConfig) -> None:
        super().__init__()
        self.config = config
        self.curve, self.curves = curve_parts(config.curve, config.hidden_size)
        num_positions = config.max_position_embeddings
        if self.curve is not None:
            num_positions = self.curve.num_control_points(num_positions)
        self.read = input_layer(config)
        self.embed_time = time_layer(config)
        self.embed_positions = nn.Embedding(num_positions, config.hidden_size)
        self.embed_norm = nn.LayerNorm(config.hidden_size)
        marian = cast(Any, config)
        self.layers = nn.ModuleList([MarianDecoderLayer(marian, index) for index in range(config.num_hidden_layers)])
        for layer in self.layers:
            cast(Any, layer).self_attn.is_causal = False  # words are predicted from those on both sides
        self.project_out_dim = output_layer(config)

    def forward(self, state: Tensor, previous: Tensor, times: Tensor, keep: Tensor, source: Source) -> Prediction:
        """Return the prediction of clean embeddings.

        Args:
            state: (batch, time, latent), the noisy embeddings.
            previous: (batch, time, latent), the last prediction; zeros without one.
            times: (batch,), as the time embedding reads them.
            keep: (batch, time), bool, false at padding, which is on the right.
        """
        length, lengths = state.shape[1], keep.sum(dim=1)
        if self.curve is not None:
            state, previous = (self.curve.to_control_points(rows, lengths) for rows in (state, previous))
            keep = self.curve.keep(lengths, length)
        positions = torch.arange(state.shape[1], device=state.device)
        hidden = self.read(state, previous) + self.embed_time(times)
        share, is_tanh = cast(float, self.config.dropout), self.config.projection == "tanh"
        if is_tanh:  # DINOISER drops before positions are added, Difformer after the norm
            hidden = F.dropout(hidden, share, self.training)
        hidden = self.embed_norm(hidden + self.embed_positions(positions))
        if not is_tanh:
            hidden = F.dropout(hidden, share, self.training)
        if self.curves is not None:
            hidden, keep = self.curves(hidden), self.curves.expand_keep(keep)
            source = source.repeated(self.curves.num_curves)
        wanted, layers, probabilities = source.wanted, cast(Any, self.layers), None
        with (
            recorded_weights((layer.self_attn for layer in layers), wanted=wanted.attentions) as own,
            recorded_weights((layer.encoder_attn for layer in layers), wanted=wanted.attentions) as other,
        ):
            hidden, states = self._run(hidden, keep, source)
        if self.curves is not None:
            hidden, probabilities = self.curves.select(hidden)
        predicted, points = self.project_out_dim(hidden), None
        if self.curve is not None:
            points, predicted = predicted, self.curve.to_embeddings(predicted, length, lengths)
            if self.config.multitoken is not None or wanted.hidden_states:
                hidden = self.curve.to_embeddings(hidden, length, lengths)
        weights = (tuple(own), tuple(other)) if wanted.attentions else (None, None)
        return Prediction(
            predicted, hidden, probabilities, points, (*states, hidden) if wanted.hidden_states else None, *weights
        )

    def _run(self, hidden: Tensor, keep: Tensor, source: Source) -> tuple[Tensor, list[Tensor]]:
        """Return the last hidden states, and the input of each layer if it is wanted."""
        own = create_bidirectional_mask(self.config, hidden, keep.long())
        other = create_bidirectional_mask(self.config, hidden, source.mask, encoder_hidden_states=source.hidden)
        states = []
        for layer in self.layers:
            if source.wanted.hidden_states:
                states.append(hidden)
            hidden = layer(hidden, own, source.hidden, other, use_cache=False)  # as checkpointing wants them
        return hidden, states
