"""An encoder-decoder model around any backbone, with heads on its decoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

from torch import Tensor
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq, Cache, PreTrainedModel
from transformers.generation.utils import GENERATION_MODES_MAPPING
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils.generic import can_return_tuple

from hf_targets.backbones.call import Call
from hf_targets.backbones.checkpoint import HUB_ARGUMENTS
from hf_targets.backbones.encoder_decoder import decoder_inputs_of, read_pair, trial_source
from hf_targets.backbones.output_matrix import find_output_scale, output_embedding
from hf_targets.multitoken.configuration import MultiTokenSeq2SeqConfig
from hf_targets.multitoken.generation import HeadsGenerationMixin
from hf_targets.multitoken.model import MultiTokenModel

_OF_BACKBONE = (
    "decoder_hidden_states",
    "decoder_attentions",
    "cross_attentions",
    "encoder_last_hidden_state",
    "encoder_hidden_states",
    "encoder_attentions",
)


@dataclass
class MultiTokenSeq2SeqLMOutput(Seq2SeqLMOutput):
    """The output of `MultiTokenForSeq2SeqLM`, in every mode.

    Attributes:
        loss: The loss of equation (6); None without labels.
        loss_parts: The terms of that sum, unweighted and detached: `next_token`, and `head_1` to `head_{N-1}`.
        logits: (batch, time, vocab), those of the ensemble if its weight is above 0; None if they were skipped.
        nlls: (batch, weights), the summed negative log-likelihood of each row's labels under each of `nll_weights`.
        last_hidden_state: (batch, time, d), of the decoder, the input of the heads; None unless requested.
    """

    loss_parts: dict[str, Tensor] | None = None
    nlls: Tensor | None = None
    last_hidden_state: Tensor | None = None


class _TextOrSpeech:
    """The Auto class of encoder-decoder models, of `AutoModelForSeq2SeqLM` and `AutoModelForSpeechSeq2Seq`."""

    @classmethod
    def from_config(cls, config: Any) -> PreTrainedModel:
        """Return a new model of a configuration."""
        return cls._of(config).from_config(config)

    @classmethod
    def from_pretrained(cls, name: str | PathLike, **loading: Any) -> PreTrainedModel:
        """Load a model of either."""
        config = AutoConfig.from_pretrained(name, **{key: loading[key] for key in HUB_ARGUMENTS if key in loading})
        return cls._of(config).from_pretrained(name, **loading)

    @staticmethod
    def _of(config: Any) -> Any:
        is_speech = type(config) in AutoModelForSpeechSeq2Seq._model_mapping
        return AutoModelForSpeechSeq2Seq if is_speech else AutoModelForSeq2SeqLM


class MultiTokenForSeq2SeqLM(MultiTokenModel, HeadsGenerationMixin):
    """Any encoder-decoder language model with N - 1 heads on its decoder: Marian, BART, T5, Whisper and others.

    The decoder's hidden state at position i predicts label i with the ordinary head, and label i+n with head n, as
    an embedding or as a word difference; see `MultiTokenForCausalLM`. The encoder has no part in this.

    Args:
        config: The configuration of the heads, which contains that of the backbone.
        backbone: The model to wrap, used as it is; None makes one with random weights.
    Raises:
        ValueError: If the backbone has no encoder, or its logits are not its output embedding applied to the decoder's
            last hidden states, times a scale, with a bias and a soft cap.
    Source: Heo et al., "Diverse Target Representations for Language Models with Word Difference Representations",
        section 4.3 and appendix A.3.2.
    """

    config_class = MultiTokenSeq2SeqConfig
    auto_class = _TextOrSpeech
    trained_by = "MultiTokenSeq2SeqTrainer"

    @classmethod
    def _output_scale(cls, backbone: PreTrainedModel) -> float | None:
        if not backbone.config.is_encoder_decoder:
            raise ValueError(
                f"{type(backbone).__name__} has no encoder; use MultiTokenForCausalLM for a causal language model"
            )
        return find_output_scale(backbone, _read_text, "decoder_input_ids", encoder_outputs=trial_source(backbone))

    def get_encoder(self, modality: str | None = None) -> Any:
        """Return the backbone's encoder."""
        return self.backbone.get_encoder(modality) if modality else self.backbone.get_encoder()

    def get_decoder(self) -> Any:
        """Return the backbone's decoder."""
        return self.backbone.get_decoder()

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Return what the decoder reads to predict labels (batch, time), as the backbone makes it of them.

        Raises:
            ValueError: If it is not known with which token the decoder starts.
        """
        return decoder_inputs_of(self.backbone, labels)

    def _write(self, *args: Any, **kwargs: Any) -> Any:
        """Generate; of speech as the backbone's own `generate` does, which asks this model for each part."""
        if self.backbone.main_input_name == "input_ids":
            return super()._write(*args, **kwargs)
        own = {name: kwargs.pop(name) for name in ("ensemble_weight", "drafting") if name in kwargs}
        if not any(own.values()) and "custom_generate" not in kwargs:
            return self.backbone.generate(*args, **kwargs)  # pyright: ignore
        if kwargs.get("streamer") is not None:
            raise ValueError("of speech, drafts and the ensemble take no streamer; leave it out")
        drafts = kwargs.pop("custom_generate", None)

        def decode(_: Any, input_ids: Tensor, **prepared: Any) -> Any:
            mode = prepared["generation_config"].get_generation_mode()
            by_mode = partial(getattr(type(self), GENERATION_MODES_MAPPING[mode]), self)
            return (by_mode if drafts is None else partial(drafts, self))(input_ids, **prepared, **own)

        return self.backbone.generate(*args, custom_generate=decode, **kwargs)  # pyright: ignore

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        input_features: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        ensemble_weight: float | None = None,
        num_items_in_batch: Tensor | int | None = None,
        nll_weights: Sequence[float] | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        output_last_hidden_state: bool = False,
        **kwargs: Any,
    ) -> MultiTokenSeq2SeqLMOutput:
        """Compute logits, and with labels the loss.

        Args:
            input_ids: (batch, source time), what the encoder reads.
            attention_mask: (batch, source time), 0 at padding.
            decoder_input_ids: (batch, time), what the decoder reads; None: `labels` moved one position on.
            decoder_attention_mask: (batch, time), 0 at padding.
            encoder_outputs: Of an earlier call, in place of `input_ids`.
            inputs_embeds, decoder_inputs_embeds: In place of the ids. Word differences need `decoder_input_ids`.
            labels: (batch, time), the target of each position of the decoder; -100 is no target.
            input_features: (batch, bins, frames), the speech that the encoder reads in place of a text.
            decoder_position_ids: (batch, time), for a decoder with a table of positions; None: it counts them.
            ensemble_weight: Lambda of equation (13), in [0, 1]; None takes the configuration's.
            num_items_in_batch: Divisor of every part of the loss; None uses the number of next-token targets here.
            nll_weights: Ensemble weights under which to score the labels, in one pass: see `nlls` of the output.
            logits_to_keep: Number of last positions, or a tensor of indices, for which to compute logits; 0 means all.
            skip_logits: Whether to skip the logits; None skips them in training with labels.
            output_last_hidden_state: Whether to return the decoder's last hidden state.
            kwargs: Passed to encoder and decoder, except `label_smoothing`, the share of the uniform distribution in
                the targets of the loss.
        Raises:
            ValueError: As `MultiTokenForCausalLM.forward`; and if the source or the decoder's text is missing.
        """
        weight = self._check_weight(ensemble_weight, *(nll_weights or ()))
        source = {"input_ids": input_ids, "attention_mask": attention_mask, "inputs_embeds": inputs_embeds}
        source["input_features"] = input_features
        call = Call.pair(
            self.backbone,
            {**source, "encoder_outputs": encoder_outputs},
            kwargs,
            decoder_input_ids=decoder_input_ids,
            decoder_inputs_embeds=decoder_inputs_embeds,
            decoder_attention_mask=decoder_attention_mask,
            decoder_position_ids=decoder_position_ids,
            past_key_values=past_key_values,
            labels=labels,
            num_items_in_batch=num_items_in_batch,
            logits_to_keep=logits_to_keep,
        )
        outputs, own = self._call(
            call,
            weight,
            nll_weights=nll_weights,
            skip_logits=skip_logits,
            output_last_hidden_state=output_last_hidden_state,
        )
        return MultiTokenSeq2SeqLMOutput(**own, **{name: outputs.get(name) for name in _OF_BACKBONE})


def _read_text(backbone: PreTrainedModel, ids: Tensor) -> Tensor:
    """Return the decoder's last hidden states of token ids, after a source to try them with."""
    hidden = read_pair(backbone, encoder_outputs=trial_source(backbone), decoder_input_ids=ids)[0]
    width = output_embedding(backbone).in_features
    if not isinstance(hidden, Tensor) or hidden.shape[-1] != width:
        raise ValueError(
            f"the decoder of {type(backbone).__name__} does not return hidden states of width {width}, which its "
            "output matrix reads; such models are not supported"
        )
    return hidden
