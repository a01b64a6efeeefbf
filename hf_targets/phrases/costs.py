"""What phrases cost: floating point operations and bytes against the number of phrases, from a model's configuration.

A multiplication and an addition are two operations. With w weights that multiply every position (all matrices but the
looked-up embeddings and the output matrix), a = heads x head width, L layers, V static ids, p phrases, width d of the
output matrix, n new positions after c cached ones and r rows of logits, one forward pass takes

    2 n w + 4 n (c + n) a L + 2 r (V + p) d.

Departs: appendix E of the dynamic vocabulary paper gives 2 (n (V + p) d + (24 n d^2 + 4 n^d) L). For GPT-2, where
w = 12 d^2 L, a = d, c = 0 and r = n, the sum above is 2 n (V + p) d + (24 n d^2 + 4 n^2 d) L: the paper's leading 2
doubles the layers' operations a second time, and its n^d is n^2 d. Its share of additional operations,
p / (V + p + (12 d + 2 n) L), follows from the sum above and not from the paper's.
Attention counts as the full square, as in the paper and as dense kernels compute it: a causal kernel does half. Norms,
activations, softmax and the encoding of phrases, which is done beforehand, are left out.
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
    """What the cost of a decoder-only Transformer depends on.

    Attributes:
        weights: Of the matrices that multiply every position: w, over all layers.
        attention_width: Heads times the width of a head, summed over the layers: a L.
        vocab_size: Rows of the output matrix: V.
        embedding_width: Their width: d.
        num_parameters: All, each once however often it is used.
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
        num_phrases: In the table.
        num_steps: Mean steps of a text: tokens and phrases.
        flops: Mean operations of generating a text.
        num_bytes: Of all weights and the phrase table.
    """

    num_phrases: int
    num_steps: float
    flops: float
    num_bytes: int


def model_size(model: PreTrainedModel | PreTrainedConfig) -> ModelSize:
    """Return the size of a decoder-only Transformer, without allocating weights when a configuration is given.

    Args:
        model: Any whose layers are matrices and full attention; of a model that wraps another, the wrapped one.
    Raises:
        ValueError: If the cost of a position is no matter of matrices alone (experts, or convolutions over time), or
            there is no output matrix.
    """
    if isinstance(model, PreTrainedConfig):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(model)
    weights = 0
    for name, module in model.named_modules():
        for parameter in () if isinstance(module, nn.Embedding) else module.parameters(recurse=False):
            if parameter.dim() > 2:
                raise ValueError(
                    f"the analytic cost knows matrices alone, and {name} of {type(model).__name__} has a parameter of "
                    f"shape {tuple(parameter.shape)}; measure it with torch.utils.flop_counter instead"
                )
            weights += parameter.numel() if parameter.dim() == 2 else 0
    head = model.get_output_embeddings()
    if head is None:
        raise ValueError(f"generation takes an output matrix, and {type(model).__name__} has none; give a causal model")
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
    """Return the operations of one forward pass of one row; the sum is at the head of this file.

    Args:
        num_positions: New ones: tokens and phrases.
        num_cached: Positions before them whose keys and values are there.
        num_logits: Positions whose next word is wanted, 1 in generation; None for all.
    Raises:
        ValueError: If a count is below 0, or more logits than positions are wanted.
    """
    num_logits = num_positions if num_logits is None else num_logits
    if min(num_positions, num_phrases, num_cached, num_logits) < 0 or num_logits > num_positions:
        raise ValueError(
            f"counts must be at least 0, and logits at most positions, got num_positions={num_positions}, "
            f"num_phrases={num_phrases}, num_cached={num_cached}, num_logits={num_logits}"
        )
    layers = 2 * num_positions * size.weights + 4 * num_positions * (num_cached + num_positions) * size.attention_width
    return layers + 2 * num_logits * (size.vocab_size + num_phrases) * size.embedding_width


def generation_flops(
    size: ModelSize, prefix_length: int, num_steps: int, num_phrases: int = 0, *, use_cache: bool = True
) -> int:
    """Return the operations of generating one text, a token or a phrase a step, with the last position's logits alone.

    Args:
        prefix_length: Positions of the prompt, at least 1.
        num_steps: Forward passes: one for each token or phrase generated. The last generated one is not read.
        use_cache: Whether keys and values are kept, or each step reads the whole text anew.
    Raises:
        ValueError: If there is no prompt or no step.
    """
    if prefix_length < 1 or num_steps < 1:
        raise ValueError(f"generation takes a prompt and a step, got {prefix_length} positions and {num_steps} steps")
    lengths = range(prefix_length, prefix_length + num_steps)
    if not use_cache:
        return sum(forward_flops(size, length, num_phrases, num_logits=1) for length in lengths)
    first = forward_flops(size, prefix_length, num_phrases, num_logits=1)
    return first + sum(forward_flops(size, 1, num_phrases, num_cached=length - 1) for length in lengths[1:])


def phrase_table_bytes(num_phrases: int, width: int, *, dtype: torch.dtype = torch.float32, num_tables: int = 1) -> int:
    """Return the bytes of the embeddings of phrases.

    Args:
        width: Of an embedding.
        num_tables: 1 where one table serves as input and as output embeddings; 2 where each has its own copy.
    Raises:
        ValueError: If a count is below 0.
    Source: Liu et al. (dynamic vocabulary), appendix E: p d 4 bytes.  Departs: the memory in its table 13 grows by
        twice that, 0.375 GiB for 65,536 phrases of width 768: it held two copies; its "GB" are GiB.
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
    """Return operations and bytes for each number of phrases, given the steps that texts took with so many.

    Args:
        model: The language model.
        steps: By number of phrases, the steps of each text; texts of equally many static tokens compare fairly.
        prefix_length: Positions of every prompt.
        encoder: The phrase encoder, in memory with the model wherever there are phrases; None where they come encoded.
            The paper counts it without phrases too.
        use_cache: As in `generation_flops`. The paper's 4.07 T for GPT-2 without phrases is about that of 128 passes
            over 128 positions with logits for all, 4.13 T: without a cache.
        dtype: Of weights and table.
        num_tables: As in `phrase_table_bytes`.
    Raises:
        ValueError: If a number of phrases has no text.
    Source: Liu et al. (dynamic vocabulary), table 13.
    """
    costs = []
    for num_phrases, of_texts in steps.items():
        if not of_texts:
            raise ValueError(f"each number of phrases must have the steps of a text, {num_phrases} has none")
        flops = [generation_flops(model, prefix_length, count, num_phrases, use_cache=use_cache) for count in of_texts]
        parameters = model.num_parameters + (encoder.num_parameters if encoder and num_phrases else 0)
        table = phrase_table_bytes(num_phrases, model.embedding_width, dtype=dtype, num_tables=num_tables)
        costs.append(PhraseCost(num_phrases, fmean(of_texts), fmean(flops), parameters * dtype.itemsize + table))
    return costs


def format_phrase_costs(costs: Sequence[PhraseCost]) -> str:
    """Return a Markdown table of the paper's columns, relative to the first row, in 10^12 operations and GiB."""
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
