"""A check whether a wrapped model can verify a tree of continuations in one pass."""

import math

import torch
from transformers import PreTrainedModel

from hf_targets.backbones.decoder_positions import position_table
from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.generation import text_reader
from hf_targets.backbones.output_matrix import output_embedding
from hf_targets.backbones.positions import max_positions
from hf_targets.backbones.weight_access import execution_device


@torch.no_grad()
def takes_tree_mask(backbone: PreTrainedModel) -> bool:
    """Return whether the backbone reads a tree correctly under a mask (batch, 1, query, key), tried on four tokens.

    False for a backbone with an attention window shorter than its longest text: a window counts indices in the chunk,
    and a tree has more nodes than steps. False too for a decoder that reads distances between places in its cache.
    """
    if backbone.config.is_encoder_decoder and position_table(backbone) is None:
        return False
    config = backbone.config.get_text_config()
    windows = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    if "local" in getattr(config, "attention_layers", ()):  # GPT-Neo
        windows.append(config.window_size)
    longest = max_positions(config) or math.inf
    if any(window is not None and window < longest for window in windows):
        return False
    device, dtype = execution_device(output_embedding(backbone)), backbone.dtype
    # the tree 0 -> 1, 0 -> 2 -> 3: position 3 sees the chain 0, 2, 3
    tokens = torch.arange(4, device=device)[None]
    path = torch.tensor([[0, 2, 3]], device=device)
    visible = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], device=device).bool()
    mask = torch.zeros(1, 1, 4, 4, dtype=dtype, device=device).masked_fill(~visible, torch.finfo(dtype).min)
    positions = torch.tensor([[0, 1, 1, 2]], device=device)
    try:
        with without_dropout(backbone):
            read = text_reader(backbone)
            tree, chain = read(tokens, mask, positions), read(tokens[:, path[0]], None, None)
    except torch.OutOfMemoryError:
        raise
    except (ValueError, TypeError, RuntimeError, IndexError):
        return False
    return torch.allclose(tree[:, path[0]].float(), chain.float(), rtol=0.02, atol=0.02 * float(chain.float().std()))
