"""One call of `forward` of a wrapped model: its arguments, their checks, and the targets of its positions."""

from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor
from transformers import Cache, PreTrainedModel

from hf_targets.backbones.alignment import next_targets
from hf_targets.backbones.encoder_decoder import decoder_inputs_of, decoder_positions, read_pair
from hf_targets.backbones.inputs import (
    check_attention_mask,
    check_count,
    check_ids,
    check_integers,
    check_position_shape,
    check_segments,
    check_shapes,
    kept_positions,
)
from hf_targets.backbones.positions import check_positions, outgrown_positions_named
from hf_targets.backbones.weight_access import num_rows
from hf_targets.backbones.wrapping import backbone_inputs
from hf_targets.maths.losses import IGNORED, target_count

_OF_CAUSAL_MODELS = {
    "position_ids": "give the decoder's positions as decoder_position_ids",
    "shift_labels": "give labels, the targets of the decoder's positions",
}


@dataclass(frozen=True)
class Call:
    """The arguments of a call of `forward`. The text is what a causal model or a decoder reads and predicts.

    Attributes:
        tokens: (batch, time), the text; None: it is given as embeddings.
        embeds: (batch, time, d), the text; None: it is given as tokens.
        attention_mask, position_ids: (batch, time), of the text; None: nothing is padded; the model counts positions.
        past_key_values: The cache; None: no cache was given.
        targets: (batch, time), the target of each position, -100 where there is none; None without labels.
        num_items_in_batch: Divisor of a loss; None: the number of targets.
        kept: The positions for which logits are requested.
        ids: All arguments that hold ids of the text's vocabulary, by their names.
        source: What an encoder reads: `input_ids`, `attention_mask`, `inputs_embeds`, `input_features` and
            `encoder_outputs`, without those that are None. Empty if there is no encoder.
        others: Arguments that only the backbone uses.
    """

    tokens: Tensor | None
    embeds: Tensor | None
    attention_mask: Tensor | None
    position_ids: Tensor | None
    past_key_values: Cache | None
    targets: Tensor | None
    num_items_in_batch: Tensor | int | None
    kept: slice | Tensor
    ids: dict[str, Tensor]
    source: dict[str, Any]
    others: dict[str, Any]

    @classmethod
    def causal(
        cls,
        others: dict[str, Any],
        *,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        past_key_values: Cache | None,
        labels: Tensor | None,
        token_type_ids: Tensor | None,
        num_items_in_batch: Tensor | int | None,
        logits_to_keep: int | Tensor,
    ) -> Self:
        """Return the call of a causal model, of the arguments of its `forward`.

        Args:
            others: Keyword arguments that are not parameters of `forward`. `shift_labels` may be among them: it is no
                parameter, as Trainer expects each parameter with "label" in its name in every batch.
        Raises:
            ValueError: If shapes or mask do not fit, or there is a count but no labels.
        """
        others = {**others, **backbone_inputs(token_type_ids=token_type_ids)}
        shifted = others.pop("shift_labels", None)
        scored = labels is not None or shifted is not None
        check_count(num_items_in_batch, has_labels=scored)
        text = check_shapes(input_ids, inputs_embeds, labels=labels, shift_labels=shifted)
        check_attention_mask(attention_mask, text, past_key_values)
        check_position_shape(position_ids, text)
        if scored:
            others.setdefault("use_cache", False)  # with a cache, backbones do not separate packed documents
        return cls(
            tokens=input_ids,
            embeds=inputs_embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            targets=next_targets(labels, attention_mask, position_ids, shifted=shifted) if scored else None,
            num_items_in_batch=num_items_in_batch,
            kept=kept_positions(logits_to_keep, text.shape[1]),
            ids=backbone_inputs(input_ids=input_ids, labels=labels, shift_labels=shifted),
            source={},
            others=others,
        )

    @classmethod
    def pair(
        cls,
        backbone: PreTrainedModel,
        source: dict[str, Any],
        others: dict[str, Any],
        *,
        decoder_input_ids: Tensor | None,
        decoder_inputs_embeds: Tensor | None,
        decoder_attention_mask: Tensor | None,
        decoder_position_ids: Tensor | None,
        past_key_values: Cache | None,
        labels: Tensor | None,
        num_items_in_batch: Tensor | int | None,
        logits_to_keep: int | Tensor,
    ) -> Self:
        """Return the call of an encoder-decoder model, of the arguments of its `forward`.

        Without a text of the decoder, the labels give it, moved one position on as the backbone moves them.

        Args:
            source: The field of this name, with those that are None.
        Raises:
            ValueError: If shapes or mask do not fit, the source or the decoder's text is missing, an id of the source
                is outside the vocabulary, or there is a count but no labels.
        """
        for name, way_out in _OF_CAUSAL_MODELS.items():
            if others.get(name) is not None:
                raise ValueError(f"{name} is for causal models, and this one has an encoder; {way_out}")
        check_segments(others.get("token_type_ids"))
        check_count(num_items_in_batch, has_labels=labels is not None)
        check_integers(labels=labels)
        source = backbone_inputs(**source)
        num_sources = _check_source(source, num_rows(backbone.get_input_embeddings()))
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            if labels is None:
                raise ValueError("the decoder needs a text; give decoder_input_ids, or labels to make them from")
            decoder_input_ids = decoder_inputs_of(backbone, labels)
        text = check_shapes(decoder_input_ids, decoder_inputs_embeds, prefix="decoder_")
        if len(text) != num_sources:
            raise ValueError(f"there must be one text of the decoder a source, got {len(text)} for {num_sources}")
        if labels is not None and labels.shape != text.shape[:2]:
            raise ValueError(
                f"labels must have the shape of decoder_input_ids, {tuple(text.shape[:2])}, got {tuple(labels.shape)}"
            )
        own = None if past_key_values is None else getattr(past_key_values, "self_attention_cache", past_key_values)
        check_attention_mask(decoder_attention_mask, text, own, "decoder_attention_mask")
        others = {name: value for name, value in others.items() if name not in (*_OF_CAUSAL_MODELS, "token_type_ids")}
        return cls(
            tokens=decoder_input_ids,
            embeds=decoder_inputs_embeds,
            attention_mask=decoder_attention_mask,
            position_ids=decoder_position_ids,
            past_key_values=past_key_values,
            targets=labels,
            num_items_in_batch=num_items_in_batch,
            kept=kept_positions(logits_to_keep, text.shape[1]),
            ids=backbone_inputs(labels=labels, decoder_input_ids=decoder_input_ids),  # the latter may be made of labels
            source=source,
            others=others if labels is None else {"use_cache": False, **others},
        )

    def check_ids(self, vocab_size: int, hint: str = "") -> None:
        """Raise a ValueError, with `hint` as its advice, if an id of the text is not in the vocabulary."""
        for name, ids in self.ids.items():
            check_ids(ids, vocab_size, name, IGNORED if "labels" in name else None, hint)

    def read(self, backbone: PreTrainedModel, embeds: Tensor | None = None) -> Any:
        """Return the outputs of the backbone's base model, which ends before the output matrix.

        Args:
            embeds: Embeddings to read in place of the given text.
        """
        tokens, embeds = (self.tokens, self.embeds) if embeds is None else (None, embeds)
        cache = backbone_inputs(past_key_values=self.past_key_values)
        if self.source:
            text = {"decoder_input_ids": tokens, "decoder_inputs_embeds": embeds}
            text |= {"decoder_attention_mask": self.attention_mask, **cache}
            with decoder_positions(backbone, self.position_ids):
                return read_pair(backbone, **self.source, **backbone_inputs(**text), **self.others)
        check_positions(backbone, self.position_ids)
        with outgrown_positions_named(backbone):
            return backbone.base_model(
                input_ids=tokens,
                attention_mask=self.attention_mask,
                position_ids=self.position_ids,
                inputs_embeds=embeds,
                return_dict=True,
                **cache,
                **self.others,
            )

    def count(self, targets: Tensor) -> Tensor | int:
        """Return the divisor of every part of the loss."""
        return target_count(targets, self.num_items_in_batch)

    def wants_logits(self, skip_logits: bool | None, *, training: bool) -> bool:
        """Return whether to compute logits; if `skip_logits` is None, yes except in training with labels."""
        return not (training and self.targets is not None) if skip_logits is None else not skip_logits


def _check_source(source: dict[str, Any], vocab_size: int) -> int:
    """Return the number of rows of a source; raise an error if it is missing, or its mask or ids do not fit."""
    ids, embeds, outputs = (source.get(name) for name in ("input_ids", "inputs_embeds", "encoder_outputs"))
    if outputs is None and (features := source.get("input_features")) is not None:
        return len(features)  # of speech
    if outputs is not None:
        read = outputs[0]
    elif ids is None and embeds is None:
        raise ValueError(
            "the encoder needs a text or speech; give input_ids, inputs_embeds, input_features or encoder_outputs"
        )
    else:
        read = check_shapes(ids, embeds)
    check_attention_mask(source.get("attention_mask"), read, None)
    if ids is not None:
        check_ids(ids, vocab_size, "input_ids")
    return len(read)
