"""A vector for each text, from the states of any encoder or causal model."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.positions import token_limit
from hf_targets.data.batches import by_length, padded_rows
from hf_targets.data.progress import progress
from hf_targets.data.words import check_texts

Pooling = Literal["mean", "cls", "last", "pooler"]


def text_encoder(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    pooling: Pooling = "mean",
    normalize: bool = True,
    batch_size: int = 32,
    max_length: int | None = None,
) -> Callable[[list[str]], Tensor]:
    """Return a function from texts to vectors (texts, dim), float32 on the CPU.

    A text's vector does not depend on the others: padding, which needs no pad token, is on the right and masked.

    Args:
        pooling: `mean` of the last states; that of the first token (`cls`) or of the `last`, for causal models; or the
            model's own (`pooler`), as DPR has.
        normalize: Whether to give vectors length 1, which makes inner products cosines.
        batch_size: Texts in a forward pass, of about equal lengths.
        max_length: Tokens kept of a text, the rest is not read; None, or more than the tokenizer and the model take: as
            many as these take.
    Raises:
        ValueError: If the model is in training mode, `pooling` is unknown, or a size is below 1; on a call, if they
            are no list of texts, there is none, a text has no token or the model's output has no such states.
    """
    if pooling not in get_args(Pooling):
        raise ValueError(f"pooling must be one of {', '.join(get_args(Pooling))}, got {pooling!r}")
    if batch_size < 1 or (max_length is not None and max_length < 1):
        raise ValueError(f"batch_size and max_length must be at least 1, got {batch_size} and {max_length}")
    if model.training:
        raise ValueError("a model must be in evaluation mode, for dropout changes its vectors; call model.eval()")
    max_length = token_limit(model, tokenizer, max_length)
    pad_id = tokenizer.pad_token_id if isinstance(tokenizer.pad_token_id, int) else 0

    @torch.no_grad()
    def encode(texts: list[str]) -> Tensor:
        check_texts(texts, "texts")
        if not texts:
            raise ValueError("there must be a text to encode, got none")
        rows: Any = tokenizer(texts, truncation=True, max_length=max_length, verbose=False)["input_ids"]
        for text, row in zip(texts, rows, strict=True):
            if not row:
                raise ValueError(f"a text must have a token, and {text[:40]!r} has none; leave it out")
        pooled, order = [], []
        with progress(len(rows), "encoding texts", unit="text") as bar:
            for numbers in by_length(list(map(len, rows)), batch_size):
                ids, mask = padded_rows([torch.tensor(rows[number]) for number in numbers], pad_id)
                ids, mask = ids.to(model.device), mask.to(model.device)
                output = model(input_ids=ids, attention_mask=mask, return_dict=True)
                pooled.append(_pool(output, mask.bool(), pooling).float().cpu())
                order += numbers
                bar.update(len(numbers))
        vectors = torch.cat(pooled)[torch.tensor(order).argsort()]
        return torch.nn.functional.normalize(vectors, dim=1) if normalize else vectors

    return encode


def _pool(output: Any, mask: Tensor, pooling: Pooling) -> Tensor:
    name = "pooler_output" if pooling == "pooler" else "last_hidden_state"
    states = output.get(name)
    if states is None:
        raise ValueError(
            f"pooling={pooling!r} needs a model with {name}, got {', '.join(output)}; choose another pooling, or the "
            f"model without its head (AutoModel)"
        )
    if pooling == "pooler":
        return states
    if pooling == "mean":
        return (states * mask[..., None]).float().sum(dim=1) / mask.sum(dim=1, keepdim=True)
    positions = torch.zeros_like(mask[:, 0], dtype=torch.int64) if pooling == "cls" else mask.sum(dim=1) - 1
    return states[torch.arange(len(states), device=states.device), positions]
