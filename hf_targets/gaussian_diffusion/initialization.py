"""How new weights are drawn: as the published program of a preset draws them."""

import math
from collections.abc import Iterator
from typing import Any, cast

from torch import nn
from transformers import initialization as init
from transformers.models.marian.modeling_marian import MarianAttention

from hf_targets.backbones.new_parts import ZeroInitLinear

BERT_DEVIATION = 0.02


def draw(module: nn.Module, deviation: float) -> None:
    """Draw the matrix of a module, not those of its parts, with this deviation; biases are 0, norms the identity."""
    if isinstance(module, nn.Linear | nn.Embedding) and not isinstance(module, ZeroInitLinear):
        init.normal_(module.weight, std=deviation)
        if getattr(module, "bias", None) is not None:
            init.zeros_(cast(Any, module.bias))
    elif hasattr(module, "reset_parameters"):
        cast(Any, module).reset_parameters()


def draw_as_difformer(model: Any) -> None:
    """Draw the encoder as fairseq does; embeddings and the decoder have been drawn as BERT's.

    Source: zhjgao/difformer: `--apply-bert-init` of its scripts reaches what the decoder has, so not the encoder.
    """
    for module in model.encoder.modules():
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=module.embedding_dim**-0.5)
        elif isinstance(module, nn.Linear):
            module.reset_parameters()
    for attention in _attentions(model.encoder):
        init.xavier_uniform_(attention.out_proj.weight)
        init.zeros_(attention.out_proj.bias)


def draw_as_dinoiser(model: Any) -> None:
    """Draw weights as torch.nn does, and small embeddings of the text; what the program lacks is drawn as BERT's.

    Departs: the layers of `torch.nn.TransformerEncoder` and decoder begin as copies of the first; here each is drawn.
    Source: yegcjs/DINOISER.
    """
    own = set() if model.decoder.curves is None else set(model.decoder.curves.modules())
    for part in (model.encoder, model.decoder, model.lengths):
        for module in part.modules():
            if isinstance(module, nn.Linear | nn.Embedding) and module not in own:
                module.reset_parameters()
    for attention in (*_attentions(model.encoder), *_attentions(model.decoder)):
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            init.zeros_(getattr(attention, name).bias)
    init.normal_(model.embed_tokens.weight, std=1e-3)


def _attentions(part: nn.Module) -> Iterator[Any]:
    """Yield the attentions of a part, with queries, keys and values drawn as if they were of one matrix."""
    for module in part.modules():
        if isinstance(module, MarianAttention):
            for name in ("q_proj", "k_proj", "v_proj"):
                init.xavier_uniform_(getattr(module, name).weight, gain=1 / math.sqrt(2))
            yield module
