"""The cost of phrases, from a model's configuration: floating point operations and bytes by the number of phrases.

A multiplication and an addition are two operations. With w weights that multiply every position (all matrices except
the input embeddings and the output matrix), a = heads x head width, L layers, V static ids, p phrases, width d of the
output matrix, n new positions after c cached ones and r rows of logits, one forward pass takes

    2 n w + 4 n (c + n) a L + 2 r (V + p) d.

Departs: appendix E of the dynamic vocabulary paper gives 2 (n (V + p) d + (24 n d^2 + 4 n^d) L). For GPT-2, where
w = 12 d^2 L, a = d, c = 0 and r = n, the sum above is 2 n (V + p) d + (24 n d^2 + 4 n^2 d) L: the paper's leading 2
doubles the layers' operations a second time, and its n^d should be n^2 d.

Attention counts as the full square. Norms, activations, softmax and the encoding of phrases are not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from lab.tables import markdown_table


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a decoder-only Transformer that determine its cost: w, a L, V, d and all parameters."""

    weights: int
    attention_width: int
    vocab_size: int
    embedding_width: int
    num_parameters: int


def model_size(model: PreTrainedModel) -> ModelSize:
    """Return the size of a decoder-only Transformer of matrices and full attention."""
    multiply = (module for module in model.modules() if not isinstance(module, nn.Embedding))
    parameters = (parameter for module in multiply for parameter in module.parameters(recurse=False))
    weights = sum(parameter.numel() for parameter in parameters if parameter.dim() == 2)
    head: Any = model.get_output_embeddings()
    output, config = head.weight, model.config
    head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return ModelSize(
        weights=weights - output.numel(),
        attention_width=config.num_hidden_layers * config.num_attention_heads * head_width,
        vocab_size=output.shape[0],
        embedding_width=output.shape[1],
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def forward_flops(
    size: ModelSize, num_positions: int, num_phrases: int = 0, *, num_cached: int = 0, num_logits: int | None = None
) -> int:
    """Return the operations of one forward pass of one row; `num_logits` is the positions with logits, None: all."""
    num_logits = num_positions if num_logits is None else num_logits
    layers = 2 * num_positions * size.weights + 4 * num_positions * (num_cached + num_positions) * size.attention_width
    return layers + 2 * num_logits * (size.vocab_size + num_phrases) * size.embedding_width


def generation_flops(
    size: ModelSize, prefix_length: int, num_steps: int, num_phrases: int = 0, *, use_cache: bool = True
) -> int:
    """Return the operations of generating one text, with logits only at the last position of each step.

    There is a forward pass for each generated token or phrase. Without the cache each reads the whole text again.
    """
    lengths = range(prefix_length, prefix_length + num_steps)
    if not use_cache:
        return sum(forward_flops(size, length, num_phrases, num_logits=1) for length in lengths)
    first = forward_flops(size, prefix_length, num_phrases, num_logits=1)
    return first + sum(forward_flops(size, 1, num_phrases, num_cached=length - 1) for length in lengths[1:])


def phrase_costs_table(
    model: ModelSize, steps: Mapping[int, float], *, prefix_length: int, encoder: ModelSize, use_cache: bool = True
) -> str:
    """Return the paper's table 13: operations and float32 memory for each number of phrases, given the mean steps.

    Source: Liu et al. (dynamic vocabulary), table 13. The paper seems to use no cache: its 4.07 T for GPT-2 without
        phrases is close to 4.13 T, the operations of 128 passes over 128 positions with logits for all. The memory in
        its table grows by two copies of the phrases' embeddings; here it is one, as of tied embeddings.
    """
    rows, first = [], None
    for num_phrases, count in steps.items():
        flops = generation_flops(model, prefix_length, round(count), num_phrases, use_cache=use_cache)
        parameters = model.num_parameters + (encoder.num_parameters if num_phrases else 0)
        num_bytes = 4 * (parameters + num_phrases * model.embedding_width)
        first = first or (flops, num_bytes)
        compute = [f"{flops / 1e12:.4g}", f"{flops / first[0]:.2f}", f"{count:.1f}"]
        rows.append([f"{num_phrases:,}", *compute, f"{num_bytes / 2**30:.4f}", f"{num_bytes / first[1]:.2f}"])
    return markdown_table(["phrases", "TFLOPs", "relative", "mean steps", "GiB", "relative"], rows, num_names=0)
