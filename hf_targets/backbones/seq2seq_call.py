"""One call of an encoder-decoder model: the source, and the decoder's text as a causal call has it."""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqModelOutput
from transformers.utils.generic import ModelOutput

from hf_targets.backbones.causal_call import CausalCall
from hf_targets.backbones.decoder_positions import decoder_positions
from hf_targets.backbones.inputs import (
    check_attention_mask,
    check_count,
    check_ids,
    check_integers,
    check_segments,
    check_shapes,
    kept_positions,
)
from hf_targets.backbones.weight_access import num_rows
from hf_targets.backbones.wrapping import backbone_inputs
from hf_targets.maths.losses import IGNORED

_CAUSAL = {
    "position_ids": "the encoder counts its positions; give those of the decoder as decoder_position_ids",
    "shift_labels": "give labels, the targets of the decoder's positions, which nothing shifts",
}


@dataclass(frozen=True)
class Seq2SeqCall(CausalCall):
    """The arguments of a call of `forward` of a wrapped encoder-decoder model.

    The fields of `CausalCall` are those of the decoder: `input_ids` are the decoder's, and `position_ids` those that it
    is to use in place of the ones that it counts itself. `labels` are the targets of the decoder's positions.

    Attributes:
        source: `input_ids`, `attention_mask`, `inputs_embeds` and `encoder_outputs`, without those that are None.
        source_vocab_size: Of the encoder; Marian's decoder may have another.
    """

    source: dict[str, Any]
    source_vocab_size: int

    @classmethod
    def of_pair(
        cls,
        backbone: PreTrainedModel,
        source: dict[str, Any],
        others: dict[str, Any],
        *,
        logits_to_keep: int | Tensor,
        labels: Tensor | None,
        decoder_input_ids: Tensor | None,
        decoder_inputs_embeds: Tensor | None,
        decoder_attention_mask: Tensor | None,
        decoder_position_ids: Tensor | None,
        past_key_values: Cache | None,
        num_items_in_batch: Tensor | int | None,
    ) -> Self:
        """Check that shapes, mask and count fit each other, and return the call.

        Without a text of the decoder, the labels give it, moved one position on as the backbone moves them.

        Raises:
            ValueError: If they do not fit, the source or the decoder's text is missing, or there is a count but no
                labels.
        """
        others = _without_causal(others)
        check_count(num_items_in_batch, has_labels=labels is not None)
        check_integers(labels=labels)
        source = backbone_inputs(**source)
        num_sources = _check_source(**source)
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            if labels is None:
                raise ValueError("the decoder needs a text; give decoder_input_ids, or labels to make them from")
            decoder_input_ids = decoder_inputs_of(backbone, labels)
        text = check_shapes(decoder_input_ids, decoder_inputs_embeds, prefix="decoder_")
        if len(text) != num_sources:
            raise ValueError(
                f"source and text must have as many rows, got {num_sources} sources and {len(text)} texts of the "
                "decoder; repeat the sources that have several texts"
            )
        if labels is not None and labels.shape != text.shape[:2]:
            raise ValueError(
                f"labels must have the shape of decoder_input_ids, {tuple(text.shape[:2])}, got {tuple(labels.shape)}; "
                "give one target for each position of the decoder, or leave out decoder_input_ids"
            )
        own = None if past_key_values is None else getattr(past_key_values, "self_attention_cache", past_key_values)
        check_attention_mask(decoder_attention_mask, text, own, "decoder_attention_mask")
        if labels is not None:
            others = {"use_cache": False, **others}
        return cls(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            position_ids=decoder_position_ids,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            labels=labels,
            shift_labels=None,
            token_type_ids=None,
            num_items_in_batch=num_items_in_batch,
            kept=kept_positions(logits_to_keep, text.shape[1]),
            others=others,
            source=source,
            source_vocab_size=num_rows(backbone.get_input_embeddings()),
        )

    @property
    def ids(self) -> dict[str, Tensor]:
        """The arguments that hold token ids of the decoder, by name, without those that are None."""
        named = {"labels": self.labels, "decoder_input_ids": self.input_ids}  # the latter may be made of the former
        return {name: ids for name, ids in named.items() if ids is not None}

    def check_ids(self, vocab_size: int, hint: str = "") -> None:
        """Check that all ids are in the vocabulary of the stack that reads or predicts them.

        Args:
            vocab_size: Of the decoder.
            hint: Advice for the end of the error.
        Raises:
            ValueError: If an id is not.
        """
        if "input_ids" in self.source:
            check_ids(self.source["input_ids"], self.source_vocab_size, "input_ids", hint=hint)
        super().check_ids(vocab_size, hint)

    def read(self, backbone: PreTrainedModel, inputs_embeds: Tensor | None = None) -> Any:
        """Return the outputs of encoder and decoder, which end before the output matrix."""
        own = inputs_embeds is None
        text = {
            "decoder_input_ids": self.input_ids if own else None,
            "decoder_inputs_embeds": self.inputs_embeds if own else inputs_embeds,
            "decoder_attention_mask": self.attention_mask,
            "past_key_values": self.past_key_values,
        }
        with decoder_positions(backbone, self.position_ids):
            return read_pair(backbone, **self.source, **backbone_inputs(**text), **self.others)

    def targets(self) -> Tensor | None:
        """Return the target of each position of the decoder, (batch, time); None without labels."""
        return self.labels


def _without_causal(others: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments without those of causal models, which a backbone of encoder and decoder ignores.

    Raises:
        ValueError: If one of them would change the result.
    """
    for name, way_out in _CAUSAL.items():
        if others.get(name) is not None:
            raise ValueError(f"{name} is an argument of causal models, and this one has an encoder; {way_out}")
    check_segments(others.get("token_type_ids"))
    return {name: value for name, value in others.items() if name not in (*_CAUSAL, "token_type_ids")}


def _check_source(
    attention_mask: Any = None,
    input_ids: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
    encoder_outputs: Any = None,
) -> int:
    """Return the number of rows of a source.

    Raises:
        ValueError: If it is missing or empty, its ids are not integers, or the mask does not fit it.
    """
    if encoder_outputs is not None:
        read = encoder_outputs[0]
    elif input_ids is None and inputs_embeds is None:
        raise ValueError("the encoder needs a text; give input_ids, inputs_embeds or encoder_outputs")
    else:
        read = check_shapes(input_ids, inputs_embeds)
    check_attention_mask(attention_mask, read, None)
    return len(read)


def decoder_inputs_of(backbone: PreTrainedModel, labels: Tensor) -> Tensor:
    """Return what the decoder reads to predict labels (batch, time): they moved one position on, as the backbone does.

    Where the backbone has no method for it (M2M100, Blenderbot), they are moved behind `decoder_start_token_id`.

    Raises:
        ValueError: If it is not known with which token the decoder starts.
    """
    prepare: Any = getattr(backbone, "prepare_decoder_input_ids_from_labels", None)
    config = backbone.config
    missing = [name for name in ("decoder_start_token_id", "pad_token_id") if getattr(config, name, None) is None]
    if prepare is None and not missing:
        moved = labels.roll(1, dims=1)
        moved[:, 0] = config.decoder_start_token_id
        return moved.masked_fill(moved == IGNORED, config.pad_token_id)
    try:
        assert prepare is not None, f"{' and '.join(missing)} not set"
        return prepare(labels=labels)
    except (ValueError, AssertionError, TypeError) as error:
        raise ValueError(
            "the decoder's first token is not known; set config.decoder_start_token_id and config.pad_token_id of the "
            f"base model ({error})"
        ) from error


def read_pair(
    backbone: PreTrainedModel,
    *,
    attention_mask: Tensor | None = None,
    encoder_outputs: Any = None,
    decoder_input_ids: Tensor | None = None,
    decoder_inputs_embeds: Tensor | None = None,
    decoder_attention_mask: Tensor | None = None,
    past_key_values: Cache | None = None,
    use_cache: bool | None = None,
    input_ids: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
    **others: Any,
) -> Any:
    """Return the outputs of a backbone's encoder and decoder, which end before the output matrix.

    BART and its kin have a model without the output matrix, which is called; of T5 and its kin the two stacks are.
    """
    texts = {"input_ids": input_ids, "inputs_embeds": inputs_embeds}
    decoder_texts = {"decoder_input_ids": decoder_input_ids, "decoder_inputs_embeds": decoder_inputs_embeds}
    if backbone.base_model is not backbone:
        return backbone.base_model(
            **backbone_inputs(**texts, **decoder_texts, past_key_values=past_key_values, use_cache=use_cache),
            attention_mask=attention_mask,
            encoder_outputs=encoder_outputs,
            decoder_attention_mask=decoder_attention_mask,
            return_dict=True,
            **others,
        )
    if encoder_outputs is None:
        encoder = backbone.get_encoder()
        encoder_outputs = encoder(**backbone_inputs(**texts), attention_mask=attention_mask, return_dict=True, **others)
    elif not isinstance(encoder_outputs, ModelOutput):
        encoder_outputs = BaseModelOutput(*encoder_outputs)
    decoded = backbone.get_decoder()(
        input_ids=decoder_input_ids,
        inputs_embeds=decoder_inputs_embeds,
        attention_mask=decoder_attention_mask,
        encoder_hidden_states=encoder_outputs[0],
        encoder_attention_mask=attention_mask,
        past_key_values=past_key_values,
        use_cache=use_cache,
        return_dict=True,
        **others,
    )
    return Seq2SeqModelOutput(
        last_hidden_state=decoded[0],
        past_key_values=decoded.get("past_key_values"),
        decoder_hidden_states=decoded.get("hidden_states"),
        decoder_attentions=decoded.get("attentions"),
        cross_attentions=decoded.get("cross_attentions"),
        encoder_last_hidden_state=encoder_outputs[0],
        encoder_hidden_states=encoder_outputs.get("hidden_states"),
        encoder_attentions=encoder_outputs.get("attentions"),
    )


def read_same(backbone: PreTrainedModel, ids: Tensor) -> Tensor:
    """Return the decoder's last hidden states with the same token ids as source and text.

    Raises:
        ValueError: If the model has no encoder, or its decoder does not end before an output matrix.
    """
    if not backbone.config.is_encoder_decoder:
        raise ValueError(
            f"{type(backbone).__name__} has no encoder; use MultiTokenForCausalLM for a causal language model"
        )
    hidden = read_pair(backbone, input_ids=ids, decoder_input_ids=ids)[0]
    width = backbone.get_output_embeddings().in_features  # pyright: ignore[reportOptionalMemberAccess]
    if not isinstance(hidden, torch.Tensor) or hidden.shape[-1] != width:
        raise ValueError(
            f"the decoder of {type(backbone).__name__} does not return hidden states of width {width}, which its "
            "output matrix reads; such models are not supported"
        )
    return hidden
