"""What a Gaussian diffusion model returns."""

from dataclasses import dataclass

from torch import Tensor
from transformers.utils.generic import ModelOutput


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
