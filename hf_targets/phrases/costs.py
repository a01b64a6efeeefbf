"""The cost of phrases, from a model's configuration: floating point operations and bytes by the number of phrases.

A multiplication and an addition are two operations. With w weights that multiply every position (all matrices except
the input embeddings and the output matrix), a = heads x head width, L layers, V static ids, p phrases, width d of the
output matrix, n new positions after c cached ones and r rows of logits, one forward pass takes

    2 n w + 4 n (c + n) a L + 2 r (V + p) d.

Departs: appendix E of the dynamic vocabulary paper gives 2 (n (V + p) d + (24 n d^2 + 4 n^d) L). For GPT-2, where
w = 12 d^2 L, a = d, c = 0 and r = n, the sum above is 2 n (V + p) d + (24 n d^2 + 4 n^2 d) L: the paper's leading 2
doubles the layers' operations a second time, and its n^d should be n^2 d. Its share of additional operations,
p / (V + p + (12 d + 2 n) L), follows from the sum above and not from the paper's sum.
Attention counts as the full square, as in the paper and in dense kernels; a causal kernel computes half of it. Norms,
activations, softmax and the encoding of phrases, which happens before generation, are not counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from hf_targets.markdown import markdown_table


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a decoder-only Transformer that determine its cost.

    Attributes:
        weights: w, the number of weights that multiply every position, in all layers.
        attention_width: a L, the number of heads times the width of a head, summed over the layers.
        vocab_size: V, the rows of the output matrix.
        embedding_width: d, the columns of the output matrix.
        num_parameters: The number of all parameters; shared parameters count once.
    """

    weights: int
    attention_width: int
    vocab_size: int
    embedding_width: int
    num_parameters: int


@dataclass(frozen=True)
class PhraseCost:
    """A row of the paper's table 13.

    Attributes:
        num_phrases: The number of phrases in the phrase table.
        num_steps: The mean number of steps (tokens and phrases) of a text.
        flops: The mean number of operations to generate a text.
        num_bytes: The bytes of all weights and of the phrase table.
    """

    num_phrases: int
    num_steps: float
    flops: float
    num_bytes: int


def model_size(model: PreTrainedModel | PreTrainedConfig) -> ModelSize:
    """Return the size of a decoder-only Transformer. No weights are allocated if a configuration is given.

    Args:
        model: A model whose layers consist of matrices and full attention, or its configuration. For a wrapper, give
            the wrapped model.
    Raises:
        ValueError: If a parameter has more than two dimensions (experts, or convolutions over time), or there is no
            output matrix.
    """
    if isinstance(model, PreTrainedConfig):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(model)
    weights = 0
    for name, module in model.named_modules():
        for parameter in () if isinstance(module, nn.Embedding) else module.parameters(recurse=False):
            if parameter.dim() > 2:
                raise ValueError(
                    f"the analytic cost supports only matrices, and {name} of {type(model).__name__} has a parameter "
                    f"of shape {tuple(parameter.shape)}; measure the cost with torch.utils.flop_counter instead"
                )
            weights += parameter.numel() if parameter.dim() == 2 else 0
    head = model.get_output_embeddings()
    if head is None:
        raise ValueError(f"generation needs an output matrix, and {type(model).__name__} has none; give a causal model")
    output = cast(Tensor, head.weight)
    config = model.config
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
    """Return the operations of one forward pass of one row, by the formula at the top of this file.

    Args:
        size: The size of the model.
        num_positions: n, the number of new positions (tokens and phrases).
        num_phrases: p, the number of phrases in the phrase table.
        num_cached: c, the number of earlier positions in the key-value cache.
        num_logits: r, the number of positions with logits, 1 in generation; None: all.
    Raises:
        ValueError: If a count is below 0, or `num_logits` exceeds `num_positions`.
    """
    num_logits = num_positions if num_logits is None else num_logits
    if min(num_positions, num_phrases, num_cached, num_logits) < 0 or num_logits > num_positions:
        raise ValueError(
            f"counts must be at least 0, and num_logits at most num_positions, got num_positions={num_positions}, "
            f"num_phrases={num_phrases}, num_cached={num_cached}, num_logits={num_logits}"
        )
    layers = 2 * num_positions * size.weights + 4 * num_positions * (num_cached + num_positions) * size.attention_width
    return layers + 2 * num_logits * (size.vocab_size + num_phrases) * size.embedding_width


def generation_flops(
    size: ModelSize, prefix_length: int, num_steps: int, num_phrases: int = 0, *, use_cache: bool = True
) -> int:
    """Return the operations of generating one text, with logits only at the last position of each step.

    Args:
        size: The size of the model.
        prefix_length: Positions of the prompt, at least 1.
        num_steps: The number of forward passes, one for each generated token or phrase. No pass reads the last one.
        num_phrases: The number of phrases in the phrase table.
        use_cache: Whether keys and values are cached. Otherwise each step reads the whole text again.
    Raises:
        ValueError: If `prefix_length` or `num_steps` is below 1.
    """
    if prefix_length < 1 or num_steps < 1:
        raise ValueError(f"generation needs a prompt and a step, got {prefix_length} positions and {num_steps} steps")
    lengths = range(prefix_length, prefix_length + num_steps)
    if not use_cache:
        return sum(forward_flops(size, length, num_phrases, num_logits=1) for length in lengths)
    first = forward_flops(size, prefix_length, num_phrases, num_logits=1)
    return first + sum(forward_flops(size, 1, num_phrases, num_cached=length - 1) for length in lengths[1:])


def phrase_table_bytes(num_phrases: int, width: int, *, dtype: torch.dtype = torch.float32, num_tables: int = 1) -> int:
    """Return the bytes of the embeddings of phrases.

    Args:
        num_phrases: The number of phrases.
        width: The width of an embedding.
        dtype: The type of an embedding.
        num_tables: 1 if input and output share one table; 2 if each has its own.
    Raises:
        ValueError: If a count is below 0.
    Source: Liu et al. (dynamic vocabulary), appendix E: p d 4 bytes.  Departs: the memory in its table 13 grows by
        twice that, 0.375 GiB for 65,536 phrases of width 768, as for two copies. Its "GB" are GiB.
    """
    if min(num_phrases, width, num_tables) < 0:
        raise ValueError(f"counts must be at least 0, got {num_phrases} phrases, width {width}, {num_tables} tables")
    return num_tables * num_phrases * width * dtype.itemsize


def phrase_costs(
    model: ModelSize,
    steps: Mapping[int, Sequence[int]],
    *,
    prefix_length: int,
    encoder: ModelSize | None = None,
    use_cache: bool = True,
    dtype: torch.dtype = torch.float32,
    num_tables: int = 1,
) -> list[PhraseCost]:
    """Return the operations and bytes for each number of phrases, given the numbers of steps of generated texts.

    Args:
        model: The size of the language model.
        steps: For each number of phrases, the number of steps of each text. A comparison is fair if all texts have the
            same number of static tokens.
        prefix_length: Positions of each prompt.
        encoder: The size of the phrase encoder, whose weights count if there are phrases; None: phrases are encoded
            beforehand. The paper also counts it without phrases.
        use_cache: As in `generation_flops`. The paper seems to use no cache: its 4.07 T for GPT-2 without phrases is
            close to 4.13 T, the operations of 128 passes over 128 positions with logits for all.
        dtype: The type of the weights and of the phrase table.
        num_tables: As in `phrase_table_bytes`.
    Raises:
        ValueError: If there are no texts for a number of phrases.
    Source: Liu et al. (dynamic vocabulary), table 13.
    """
    costs = []
    for num_phrases, of_texts in steps.items():
        if not of_texts:
            raise ValueError(f"each number of phrases needs the steps of a text, and {num_phrases} has none")
        flops = [generation_flops(model, prefix_length, count, num_phrases, use_cache=use_cache) for count in of_texts]
        parameters = model.num_parameters + (encoder.num_parameters if encoder and num_phrases else 0)
        table = phrase_table_bytes(num_phrases, model.embedding_width, dtype=dtype, num_tables=num_tables)
        costs.append(PhraseCost(num_phrases, fmean(of_texts), fmean(flops), parameters * dtype.itemsize + table))
    return costs


def format_phrase_costs(costs: Sequence[PhraseCost]) -> str:
    """Return a Markdown table with the paper's columns, in 10^12 operations and GiB, and relative to the first row."""
    columns = ["phrases", "TFLOPs", "relative", "mean steps", "GiB", "relative"]
    rows = [
        [
            f"{cost.num_phrases:,}",
            f"{cost.flops / 1e12:.4g}",
            f"{cost.flops / costs[0].flops:.2f}",
            f"{cost.num_steps:.1f}",
            f"{cost.num_bytes / 2**30:.4f}",
            f"{cost.num_bytes / costs[0].num_bytes:.2f}",
        ]
        for cost in costs
    ]
    return markdown_table(columns, rows, num_names=0)
