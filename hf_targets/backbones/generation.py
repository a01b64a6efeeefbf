"""What `generate` of a model around a backbone needs: its settings, the inputs of a step, how rows are read."""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# (Transformers mixes generation into some models only)

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import logits_process
from transformers.generation.logits_process import LogitsProcessorList

from hf_targets.backbones.decoder_positions import decoder_positions
from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.seq2seq_call import read_pair
from hf_targets.backbones.weight_access import execution_device
from hf_targets.backbones.wrapping import backbone_inputs

Reader = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]

_NOT_FOR_REFORMER = ("position_ids", "logits_to_keep", "next_sequence_length")
_WARPERS = ("Temperature", "TopK", "TopP", "MinP", "Typical", "Epsilon", "Eta")
_IGNORE_TEXT = {
    logits_process.SuppressTokensLogitsProcessor,
    *(getattr(logits_process, f"{name}LogitsWarper") for name in _WARPERS),
}


def generation_setting(name: str, given: GenerationConfig | None, own: GenerationConfig | None) -> Any:
    """Return a setting of the configuration that was given, or else of the model's own; None if neither has it.

    Transformers fills what a given configuration lacks in the same way. The configuration given to an assistant is that
    of the model which it assists, and is passed over.
    """
    configs = (own,) if is_assistant(given) else (given, own)
    values = (getattr(config, name, None) for config in configs)
    return next((value for value in values if value is not None), None)


def is_assistant(given: GenerationConfig | None) -> bool:
    """Return whether a model is asked for drafts that another model verifies."""
    return bool(getattr(given, "is_assistant", False))


def read_text(processors: LogitsProcessorList) -> bool:
    """Return whether any processor reads the text; if none does, one call can process rows of all lengths."""
    return not all(type(processor) in _IGNORE_TEXT for processor in processors)


def inputs_of_step(
    backbone: PreTrainedModel, input_ids: Tensor, inputs_embeds: Tensor | None, **kwargs: Any
) -> dict[str, Any]:
    """Return the inputs that the backbone prepares for a step of `generate`, from the arguments of a wrapper."""
    if inputs_embeds is not None:
        kwargs["inputs_embeds"] = inputs_embeds
    if not backbone._supports_default_dynamic_cache():
        # Reformer counts positions itself and cannot pad given ones; it prints arguments that it does not know
        kwargs = {name: value for name, value in kwargs.items() if name not in _NOT_FOR_REFORMER}
    return backbone.prepare_inputs_for_generation(input_ids, **kwargs)


def text_reader(backbone: PreTrainedModel) -> Reader:
    """Return a function from token ids (batch, time), a mask and positions to the last hidden states.

    A decoder reads them after a source of two tokens.
    """
    if not backbone.config.is_encoder_decoder:

        def read(ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor:
            given = backbone_inputs(attention_mask=mask, position_ids=positions)
            return backbone.base_model(input_ids=ids, use_cache=False, **given)[0]

        return read
    source = backbone.get_encoder()(input_ids=torch.arange(1, 3, device=execution_device(backbone))[None])

    def read_after_source(ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor:
        given = backbone_inputs(decoder_attention_mask=mask)
        with decoder_positions(backbone, positions):
            return read_pair(backbone, encoder_outputs=source, decoder_input_ids=ids, use_cache=False, **given)[0]

    return read_after_source


@torch.no_grad()
def takes_shifted_rows(backbone: PreTrainedModel) -> bool:
    """Return whether a text that begins later in a row is read as the same text, tried on four tokens.

    So it is by decoders whose positions can be given, and by those that read distances alone. Rows of a batch that grow
    by different numbers of tokens need it.
    """
    device = execution_device(backbone)
    ids = torch.arange(1, 5, device=device)[None]
    mask = torch.tensor([[0, 1, 1, 1]], device=device)
    positions = torch.tensor([[0, 0, 1, 2]], device=device)
    try:
        with without_dropout(backbone):
            read = text_reader(backbone)
            shifted, plain = read(ids, mask, positions)[:, 1:].float(), read(ids[:, 1:], None, None).float()
    except torch.OutOfMemoryError:
        raise
    except (ValueError, TypeError, RuntimeError, IndexError):
        return False
    return torch.allclose(shifted, plain, rtol=0.02, atol=0.02 * float(plain.std()))
