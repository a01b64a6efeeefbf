"""What `generate` of a model around a backbone needs: its settings, the inputs of a step, how rows are read."""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# (Transformers mixes generation into some models only)

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import logits_process
from transformers.generation.logits_process import LogitsProcessor

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.encoder_decoder import decoder_positions, position_table, read_pair, trial_source
from hf_targets.backbones.output_matrix import output_embedding
from hf_targets.backbones.positions import max_positions
from hf_targets.backbones.weight_access import execution_device
from hf_targets.backbones.wrapping import backbone_inputs

Reader = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]

_TRIED: WeakKeyDictionary[nn.Module, dict[Any, bool]] = WeakKeyDictionary()
"""What trials of a model found, by trial and conditions; each costs passes, and every call of `generate` asks."""
_NOT_FOR_REFORMER = ("position_ids", "logits_to_keep", "next_sequence_length")
_WARPERS = ("Temperature", "TopK", "TopP", "MinP", "Typical", "Epsilon", "Eta")
_IGNORE_TEXT = {
    logits_process.SuppressTokensLogitsProcessor,
    *(getattr(logits_process, f"{name}LogitsWarper") for name in _WARPERS),
}
_READ_ROWS = ("RepetitionPenalty", "MinLength", "MinNewTokensLength", "NoRepeatNGram", "NoBadWords", "SequenceBias")
_ROW_BY_ROW = {*_IGNORE_TEXT, *(getattr(logits_process, f"{name}LogitsProcessor") for name in _READ_ROWS)}


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


def read_text(processors: Iterable[LogitsProcessor]) -> bool:
    """Return whether any processor reads the text; if none does, one call can process rows of all lengths."""
    return not all(type(processor) in _IGNORE_TEXT for processor in processors)


def read_rows_alone(processors: Sequence[LogitsProcessor]) -> bool:
    """Return whether all processors are known to hold no value for each row, so that some rows can be processed."""
    of_rows = [one for one in processors if isinstance(getattr(one, "prompt_ignore_length", None), Tensor)]
    return not of_rows and all(type(processor) in _ROW_BY_ROW for processor in processors)


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

    A decoder reads them after a source of two positions.
    """
    if not backbone.config.is_encoder_decoder:

        def read(ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor:
            takes = "position_ids" in inspect.signature(backbone.base_model.forward).parameters
            given = backbone_inputs(attention_mask=mask, position_ids=positions if takes else None)
            return backbone.base_model(input_ids=ids, use_cache=False, **given)[0]

        return read
    source = trial_source(backbone)

    def read_after_source(ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor:
        given = backbone_inputs(decoder_attention_mask=mask)
        with decoder_positions(backbone, positions):
            return read_pair(backbone, encoder_outputs=source, decoder_input_ids=ids, use_cache=False, **given)[0]

    return read_after_source


def tried(model: PreTrainedModel, name: str, trial: Callable[[], bool]) -> bool:
    """Return what a trial of a model finds; it runs once for each type, device and attention of the model."""
    known = _TRIED.setdefault(model, {})
    conditions = name, model.dtype, execution_device(model), str(model.config._attn_implementation)
    if conditions not in known:
        known[conditions] = trial()
    return known[conditions]


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
    return tried(backbone, "rows", lambda: _reads_alike(backbone, ids, mask, positions, [1, 2, 3]))


def has_window(backbone: PreTrainedModel) -> bool:
    """Return whether its attention has a window shorter than its longest text; it counts indices in the cache."""
    config = backbone.config.get_text_config()
    windows = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    if "local" in getattr(config, "attention_layers", ()):  # GPT-Neo
        windows.append(config.window_size)
    longest = max_positions(config) or math.inf
    return any(window is not None and window < longest for window in windows)


@torch.no_grad()
def takes_tree_mask(backbone: PreTrainedModel) -> bool:
    """Return whether the backbone reads a tree correctly under a mask (batch, 1, query, key), tried on four tokens.

    False for a backbone with an attention window shorter than its longest text: a window counts indices in the chunk,
    and a tree has more nodes than steps. False too for a decoder that reads distances between places in its cache.
    """
    if backbone.config.is_encoder_decoder and position_table(backbone) is None:
        return False
    if has_window(backbone):
        return False
    device, dtype = execution_device(output_embedding(backbone)), backbone.dtype
    # the tree 0 -> 1, 0 -> 2 -> 3: position 3 sees the chain 0, 2, 3
    tokens = torch.arange(4, device=device)[None]
    visible = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], device=device).bool()
    mask = torch.zeros(1, 1, 4, 4, dtype=dtype, device=device).masked_fill(~visible, torch.finfo(dtype).min)
    positions = torch.tensor([[0, 1, 1, 2]], device=device)
    return tried(backbone, "tree", lambda: _reads_alike(backbone, tokens, mask, positions, [0, 2, 3]))


def _reads_alike(backbone: PreTrainedModel, ids: Tensor, mask: Tensor, positions: Tensor, kept: list[int]) -> bool:
    """Return whether some tokens (1, length) are read as without the others; a backbone that raises does not."""
    try:
        with without_dropout(backbone):
            read = text_reader(backbone)
            found, alone = read(ids, mask, positions)[:, kept].float(), read(ids[:, kept], None, None).float()
    except torch.OutOfMemoryError:
        raise
    except (ValueError, TypeError, RuntimeError, IndexError):
        return False
    return torch.allclose(found, alone, rtol=0.02, atol=0.02 * float(alone.std()))
