"""The tokens that heads may draft, where a product with the whole output matrix would cost too much."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from hf_targets.backbones.output_matrix import OutputMap
from hf_targets.backbones.weight_access import call_inside
from hf_targets.maths.losses import IGNORED, soft_capped

_NOT_DRAFTED = -1e4


class DraftVocabulary(nn.Module):
    """The ids of the tokens among which heads choose their drafts. Verification reads the whole vocabulary.

    At first these are the lowest ids, which in byte-pair encodings are the earliest merges and so frequent tokens.

    Args:
        size: The number of tokens, in [1, V].
        vocab_size: V.
    """

    def __init__(self, size: int, vocab_size: int) -> None:
        super().__init__()
        if size > vocab_size:
            raise ValueError(f"draft_vocab_size must be at most the size of the vocabulary, {vocab_size}, got {size}")
        self.ids: Tensor
        self.register_buffer("ids", torch.arange(size))
        self._rows: tuple[Any, Tensor, Tensor | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": None}

    def choose(self, texts: Iterable[Iterable[int]]) -> None:
        """Keep the tokens that are most frequent in texts; ids that fill the rest are the lowest others."""
        counts = Counter(token for text in texts for token in text)
        frequent = [token for token, _ in counts.most_common(len(self.ids))]
        lowest = (token for token in range(len(frequent) + len(self.ids)) if token not in counts)
        ids = sorted(frequent + [next(lowest) for _ in range(len(self.ids) - len(frequent))])
        self.ids.copy_(torch.tensor(ids))
        self._rows = None

    def places(self, tokens: Int[Tensor, "*rows"]) -> Int[Tensor, "*rows"]:
        """Return the index of each token among `ids`, which are sorted; -100 for one that is not drafted."""
        ids = self.ids.to(tokens.device)
        at = torch.searchsorted(ids, tokens).clamp(max=len(ids) - 1)
        return at.masked_fill(ids[at] != tokens, IGNORED)

    def logits(self, output: OutputMap, states: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows size"]:
        """Return the logits of predicted embeddings for the tokens of `ids`, whose rows of the matrix are kept."""
        logits = call_inside(output.layer, self._logits, output.scaled(states))
        if output.added is not None:
            logits = logits + output.added[self.ids.to(output.added.device)]
        return soft_capped(logits, output.cap)

    def whole(self, logits: Float[Tensor, "*rows size"], vocab_size: int) -> Float[Tensor, "*rows vocab"]:
        """Return logits of all tokens, -10,000 for those that are not drafted.

        These are not minus infinity, as a processor may forbid all of the others.
        """
        everything = logits.new_full((*logits.shape[:-1], vocab_size), _NOT_DRAFTED)
        return everything.index_copy_(-1, self.ids.to(logits.device), logits)

    def _logits(self, weight: Tensor, bias: Tensor | None, states: Tensor) -> Tensor:
        versions = [0 if tensor.is_inference() else tensor._version for tensor in (weight, self.ids)]
        version = (weight.data_ptr(), weight.dtype, weight.device, *versions)
        if self._rows is None or self._rows[0] != version:
            ids = self.ids.to(weight.device)
            self._rows = version, weight.detach()[ids], None if bias is None else bias.detach()[ids]
        _, rows, biases = self._rows
        return F.linear(states, rows, biases)
