"""Attention of a pass over drafts: heads that share keys are read at once, and the keys are not copied for each."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_OF_OTHERS = ("position_bias", "cache", "softcap", "output_attentions")
"""What Transformers' own function is asked to read or to refuse."""


@contextmanager
def grouped_queries() -> Iterator[None]:
    """Let models read their drafts by `grouped_sdpa` in this context, where "sdpa" is Transformers' own function.

    Transformers copies all keys and values of the text for each head of a group as soon as a pass has several tokens
    and a mask, in every layer.
    """
    if ALL_ATTENTION_FUNCTIONS["sdpa"] is not sdpa_attention_forward:
        yield
        return
    ALL_ATTENTION_FUNCTIONS["sdpa"] = grouped_sdpa
    try:
        yield
    finally:
        with suppress(KeyError):  # another thread has left it first
            del ALL_ATTENTION_FUNCTIONS["sdpa"]


def grouped_sdpa(
    module: nn.Module,
    query: Float[Tensor, "rows heads chunk head_dim"],
    key: Float[Tensor, "rows groups length head_dim"],
    value: Float[Tensor, "rows groups length value_dim"],
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "rows chunk heads value_dim"], None]:
    """Return what Transformers' "sdpa" does; the queries of all heads of a group are read as one longer chunk.

    Args:
        attention_mask: (rows or 1, 1, chunk, length); other masks, and none, are left to Transformers.
    """
    rows, heads, chunk, _ = query.shape
    shared = heads // key.shape[1]
    others = any(kwargs.get(name) is not None for name in _OF_OTHERS)
    if attention_mask is None or attention_mask.shape[1:-2] != (1,) or shared == 1 or chunk == 1 or others:
        given = {"dropout": dropout, "scaling": scaling, **kwargs}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **given)
    read = F.scaled_dot_product_attention(
        query.reshape(rows, key.shape[1], shared * chunk, -1),
        key,
        value,
        attn_mask=attention_mask.repeat(1, 1, shared, 1),
        dropout_p=dropout,
        scale=scaling,
    )
    return read.reshape(rows, heads, chunk, -1).transpose(1, 2).contiguous(), None
