"""What a backbone with encoder and decoder reads: its two stacks, the decoder's text, and the decoder's positions."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, MoEModelOutput, Seq2SeqModelOutput
from transformers.utils.generic import ModelOutput

from hf_targets.backbones.weight_access import execution_device
from hf_targets.backbones.wrapping import backbone_inputs
from hf_targets.maths.losses import IGNORED


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


def trial_source(backbone: PreTrainedModel) -> MoEModelOutput:
    """Return what the encoder might have read, of two positions, to try the decoder with; it may be speech."""
    ones = torch.ones(1, 2, backbone.get_encoder().config.hidden_size, dtype=backbone.dtype)
    return MoEModelOutput(last_hidden_state=ones.to(execution_device(backbone)))  # pyright: ignore, any model reads it


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


@contextmanager
def decoder_positions(backbone: PreTrainedModel, positions: Tensor | None) -> Iterator[None]:
    """Make the decoder use given positions inside the `with` block, in this thread, if it has a table of positions.

    A decoder takes no positions: it counts those of its cache. T5 and its kin have none: their attention depends on
    distances in the cache.

    Args:
        positions: (batch, time); None: those that the decoder counts.
    """
    table = None if positions is None else position_table(backbone)
    if table is None:
        yield
        return
    thread = get_ident()

    def give(module: nn.Module, args: tuple, *named: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        if get_ident() != thread or not named:  # torch may not know yet that this hook takes named arguments
            return None
        return args, {**named[0], "position_ids": positions}

    def flatten(module: nn.Module, args: tuple, embeddings: Tensor) -> Tensor:
        is_wide = embeddings.ndim == 4 and get_ident() == thread  # BART adds a dimension to positions that are given
        return embeddings[0] if is_wide else embeddings

    hooks = [table.register_forward_pre_hook(give, with_kwargs=True), table.register_forward_hook(flatten)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def position_table(backbone: PreTrainedModel) -> nn.Module | None:
    """Return what gives the decoder the embeddings of positions; None if nothing does, or it takes no positions.

    M2M100's and LED's take none.
    """
    table = getattr(backbone.get_decoder(), "embed_positions", None)
    if not isinstance(table, nn.Module) or "position_ids" not in inspect.signature(table.forward).parameters:
        return None
    return table
