"""kNN-LM: words that followed similar hidden states in a text become more probable, in any causal model."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_targets.baselines.knn_datastore import KnnDatastore
from hf_targets.evaluation.perplexity import row_of_block
from hf_targets.maths.losses import IGNORED
from hf_targets.neural_cache.cache import mix_targets, mix_words
from hf_targets.neural_cache.generation import HiddenStateProcessor
from hf_targets.neural_cache.perplexity import read_blocks


class KnnProcessor(HiddenStateProcessor):
    """Logits processor of kNN-LM: p(w) = (1 - lambda) p_model(w) + lambda p_kNN(w).

    p_kNN(w) is the softmax of -|h - h_i|^2 / temperature over the `k` keys h_i of a datastore that are nearest to the
    state h, summed where the word after h_i is w. `cached_perplexities` takes it, too, and may add a `NeuralCache`.

    >>> with KnnProcessor(store, model, temperature=100.0) as processor:  # doctest: +SKIP
    ...     model.generate(**inputs, logits_processor=[processor])

    Args:
        datastore, model: Of the same weights; the model is as for `HiddenStateProcessor`.
        k: Neighbours, in [1, keys of the datastore].
        temperature: Above 0. States of a trained Transformer lie far apart, and want a high one: see `tuned`.
        weight: Lambda, in [0, 1). At 0 the scores are the model's, bit for bit.
        own_text: Whether it may score, or be tuned on, the text of the datastore, whose perplexity says nothing.
    Raises:
        ValueError: If a setting is outside its range, the datastore is of another model, or the text that is scored is
            its own.
    Source: Khandelwal et al. 2020, equations (2) and (3).
    """

    def __init__(
        self,
        datastore: KnnDatastore,
        model: PreTrainedModel,
        *,
        k: int = 1024,
        temperature: float = 1.0,
        weight: float = 0.25,
        own_text: bool = False,
    ) -> None:
        super().__init__(model)
        datastore.check_k(k)
        _check(temperature, weight)
        datastore.check_model(model)
        self.datastore, self.model = datastore, model
        self.k, self.temperature, self.weight, self.own_text = k, temperature, weight, own_text

    def tuned(
        self, blocks: Iterable[Mapping[str, Any]], *, temperatures: Sequence[float], weights: Sequence[float]
    ) -> Self:
        """Return the processor of the lowest perplexity of a text, among all pairs of a temperature and a weight.

        The model reads the text once, and neighbours are searched once.

        Args:
            blocks: Validation text, which is not in the datastore, as for `perplexity_of_blocks`.
        Raises:
            ValueError: As the class, or if no block has a target.
        """
        pairs = list(product(temperatures, weights))
        for pair in pairs:
            _check(*pair)
        rows, shares = [row_of_block(one, at) for at, one in enumerate(blocks)], torch.tensor(weights).double()
        if not any((labels[1:] != IGNORED).any() for _, labels in rows):
            raise ValueError(f"tuning needs a target, and {len(rows)} blocks have none; give longer blocks")
        losses = torch.zeros(len(temperatures), len(weights), dtype=torch.float64)
        for states, words, nlls in read_blocks(self.model, rows, batch_size=8):
            kept = self._kept(words)
            own, found = (-nlls[kept]).exp().cpu()[:, None], self.datastore.search(states[kept], self.k)
            speaks = found[1][:, :1].cpu() >= 0
            for row, temperature in zip(losses, temperatures, strict=True):
                other = _said(*found, words[kept], temperature).cpu()[:, None]
                row -= mix_targets(own, other, shares, speaks).log().sum(dim=0)
        temperature, weight = pairs[int(losses.argmin())]
        chosen = {"temperature": temperature, "weight": weight}
        return type(self)(self.datastore, self.model, k=self.k, own_text=self.own_text, **chosen)

    def memory(self, batch_size: int, like: Tensor) -> None:
        """Return nothing: it remembers no text but that of its datastore."""

    def target_probabilities(self, probabilities: Tensor, states: Tensor, words: Tensor, memory: None = None) -> Tensor:
        """Return the probabilities (batch, time) of the words that follow states (batch, time, d).

        Where words are below 0 they are the model's, which are given.
        """
        kept = self._kept(words)
        distances, found = self.datastore.search(states[kept], self.k)
        other, speaks = torch.zeros_like(probabilities), torch.zeros_like(kept)
        other[kept] = _said(distances, found, words[kept], self.temperature).to(other.dtype)
        speaks[kept] = found[:, 0] >= 0
        return mix_targets(probabilities, other, self.weight, speaks)

    def _kept(self, words: Tensor) -> Tensor:
        """Return which words are targets, whose text must be another than the datastore's."""
        if not self.own_text:
            self.datastore.check_is_another_text(words.flatten())
        return words >= 0

    def _mixed(self, own: Tensor, input_ids: Tensor, states: Tensor, keep: Tensor | None) -> Tensor:
        distances, words = self.datastore.search(states[:, -1], self.k)
        return mix_words(own, words, _shares(distances, self.temperature), self.weight)


def _check(temperature: float, weight: float) -> None:
    if not 0 < temperature < math.inf or not 0 <= weight < 1:
        raise ValueError(f"temperature must be above 0, and weight (lambda) in [0, 1), got {temperature} and {weight}")


def _shares(distances: Tensor, temperature: float) -> Tensor:
    """Return the softmax of -distances / temperature (rows, k); 0 in rows without a neighbour."""
    return torch.softmax(-distances / temperature, dim=1).nan_to_num(0.0)


def _said(distances: Tensor, found: Tensor, words: Tensor, temperature: float) -> Tensor:
    """Return p_kNN (rows,) of one word each."""
    return (_shares(distances, temperature) * (found == words[:, None])).sum(dim=1).double()
