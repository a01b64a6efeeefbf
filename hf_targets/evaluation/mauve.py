"""MAUVE: how close generated texts are to human ones, as distributions over clusters of a language model's features.

The measure itself is mauve-text, a program under the GNU General Public License: an optional extra that is imported
when a score is asked for, and no part of this library.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any, Literal, cast

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.weight_access import execution_device
from hf_targets.data.batches import by_length, padded_rows
from hf_targets.extras import require
from hf_targets.positions import max_positions
from hf_targets.progress import progress

GIVEN = "given features"
"""What stands for the name of the feature model where features were given."""

TEXTS_PER_BUCKET = 10
FEW_TEXTS = 1000

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Mauve:
    """A MAUVE score with all that it depends on: scores are comparable only where everything below `scores` is equal.

    Attributes:
        scores: For each seed of the clustering, in [0, 1]; the papers print them times 100.
        smoothed_scores: The same with smoothed histograms (mauve*), less optimistic about rare clusters.
        frontier_integrals: For each seed, in [0, 1], lower is closer; it knows no scaling.
        seeds: Of the clustering.
        scaling: The constant c of the divergence curve: a larger one gives lower scores.
        num_buckets: Clusters.
        num_texts: On each side.
        feature_model: Name of the model that gave the features, or `GIVEN`.
        max_length: Tokens of a text that the features have seen at most; None for given features.
    """

    scores: tuple[float, ...]
    smoothed_scores: tuple[float, ...]
    frontier_integrals: tuple[float, ...]
    seeds: tuple[int, ...]
    scaling: float
    num_buckets: int
    num_texts: int
    feature_model: str
    max_length: int | None

    @property
    def score(self) -> float:
        """Return the mean score of the seeds, in [0, 1]."""
        return fmean(self.scores)

    @property
    def deviation(self) -> float:
        """Return the standard deviation between seeds: of the clustering alone, not of the texts."""
        return pstdev(self.scores)


def mauve_score(
    texts: Sequence[str] | None,
    references: Sequence[str] | None,
    *,
    features: tuple[Any, Any] | None = None,
    feature_model: str | PreTrainedModel = "gpt2-large",
    tokenizer: PreTrainedTokenizerBase | None = None,
    scaling: float = 2.0,
    seeds: Sequence[int] = (25,),
    num_buckets: int | Literal["auto"] = "auto",
    max_length: int | None = None,
    batch_size: int = 8,
    device: str | torch.device = "cpu",
) -> Mauve:
    """Return the MAUVE score of generated texts against references.

    Args:
        texts: Generated, with their prefixes; None where features are given.
        references: As many human texts with the same prefixes, best cut to the lengths of the generated ones.
        features: Arrays (texts, width) of the texts and the references, in place of a feature model's.
        feature_model: A model or its name; whatever has hidden states, GPT-2 large in the papers.
        tokenizer: Of a given model; by default the one that goes with the model's name.
        scaling: The constant c: 2 in Liu et al. (dynamic vocabulary) and Lan et al. 2023, 5 in mauve-text.
        seeds: Of the clustering; more than one tells how much the score owes to it.
        num_buckets: Clusters, by default a tenth of the number of texts.
        max_length: As in `text_features`; 512 in Lan et al. 2023.
        batch_size, device: As in `text_features`; the device is for a model given by name.
    Raises:
        ImportError: If mauve-text is not installed: the extra `eval`.
        ValueError: If texts and references differ in number or are too few for two buckets (20, or as many as
            `num_buckets`), features are no two finite matrices of one width, or there is no seed.
    Source: Pillutla et al. 2021 and 2023; Liu et al., appendix C.
    """
    if features is None and (texts is None or references is None):
        raise ValueError("MAUVE compares texts with references, got None for one; give both, or the features of both")
    counts = {len(side) for side in (texts, references, *(features or ())) if side is not None}
    if len(counts) > 1:
        raise ValueError(
            f"MAUVE compares as many texts as references, got counts of {sorted(counts)}; drop the texts without a "
            f"partner, since both the score and its buckets depend on the counts"
        )
    num_texts = counts.pop()
    _check_settings(num_texts, num_buckets, scaling, seeds)
    compute = require("mauve", extra="eval").compute_mauve  # before features are made, which takes long
    name = GIVEN
    if features is None:
        model, tokenizer = _load(feature_model, tokenizer, device)
        name, max_length = model.name_or_path or type(model).__name__, _longest(model, max_length)
        sides = [
            text_features(cast(Sequence[str], side), model, tokenizer, max_length=max_length, batch_size=batch_size)
            for side in (texts, references)
        ]
    else:
        sides, max_length = list(features), None
    ours, theirs = _matrices(sides)
    results = [
        compute(  # the order of the papers' own program; the clustering, and so the score, depends on it a little
            p_features=theirs,
            q_features=ours,
            mauve_scaling_factor=scaling,
            num_buckets=num_buckets,
            seed=seed,
            verbose=False,
        )
        for seed in seeds
    ]
    return Mauve(
        scores=tuple(float(result.mauve) for result in results),
        smoothed_scores=tuple(float(result.mauve_star) for result in results),
        frontier_integrals=tuple(float(result.frontier_integral) for result in results),
        seeds=tuple(seeds),
        scaling=float(scaling),
        num_buckets=int(results[0].num_buckets),
        num_texts=num_texts,
        feature_model=name,
        max_length=max_length,
    )


@torch.no_grad()
def text_features(
    texts: Sequence[str],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int | None = None,
    batch_size: int = 8,
) -> np.ndarray:
    """Return the last hidden state of the last token of each text, (texts, width) in float32.

    Args:
        model: Any backbone, or model with a head; its device is used, and its dropout is off meanwhile.
        tokenizer: Called with its special tokens; padding is ours, so it needs no padding token.
        max_length: Tokens of a text at most, those behind are cut off; by default 1024, or the model's positions.
        batch_size: Texts in a forward pass, of similar lengths.
    Raises:
        ValueError: If a text has no token, or `max_length` is above the model's positions or below 1.
    """
    max_length = _longest(model, max_length)
    if isinstance(texts, str) or not texts or batch_size < 1:
        raise ValueError(f"features take a list of texts and a batch_size of 1 or more, got {texts!r} and {batch_size}")
    encoded = tokenizer(list(texts), truncation=True, max_length=max_length, verbose=False)["input_ids"]
    rows = [torch.tensor(ids, dtype=torch.long) for ids in cast(list[list[int]], encoded)]
    for index, row in enumerate(rows):
        if not len(row):
            raise ValueError(
                f"a text must have a token, text {index} ({texts[index]!r}) has none; put its prefix first"
            )
    backbone: Any = model
    while backbone.base_model is not backbone:
        backbone = backbone.base_model
    features = np.empty(0)
    with without_dropout(model), progress(len(rows), "encoding texts for MAUVE", unit="text") as bar:
        for indices in by_length(list(map(len, rows)), batch_size):
            ids, mask = padded_rows([rows[index] for index in indices])
            output = backbone(
                input_ids=ids.to(execution_device(model)), attention_mask=mask.to(execution_device(model))
            )
            last = output.last_hidden_state[
                torch.arange(len(indices)), (mask.sum(dim=1) - 1).to(execution_device(model))
            ]
            if not len(features):
                features = np.empty((len(rows), last.shape[-1]), np.float32)
            features[indices] = last.float().cpu().numpy()
            bar.update(len(indices))
    return features


def _load(
    model: str | PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, device: str | torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if isinstance(model, str):
        return AutoModel.from_pretrained(model).to(device), tokenizer or AutoTokenizer.from_pretrained(model)
    if tokenizer is None:
        if not model.name_or_path:
            raise ValueError("a feature model without a name needs its tokenizer; give tokenizer=")
        tokenizer = AutoTokenizer.from_pretrained(model.name_or_path)
    return model, cast(PreTrainedTokenizerBase, tokenizer)


def _longest(model: PreTrainedModel, max_length: int | None) -> int:
    positions = max_positions(model.config)  # not every model has a last position
    if max_length is None:
        return 1024 if positions is None else min(1024, positions)
    if max_length < 1 or (positions is not None and max_length > positions):
        raise ValueError(f"max_length must be in [1, {positions or 'any'}], the model's positions, got {max_length}")
    return max_length


def _check_settings(num_texts: int, num_buckets: int | str, scaling: float, seeds: Sequence[int]) -> None:
    if not (num_buckets == "auto" or (isinstance(num_buckets, int) and num_buckets >= 2)):
        raise ValueError(f'num_buckets must be "auto" or at least 2, got {num_buckets!r}')
    needed = 2 * TEXTS_PER_BUCKET if isinstance(num_buckets, str) else num_buckets
    if num_texts < needed:
        raise ValueError(
            f"MAUVE needs at least {needed} texts for num_buckets={num_buckets!r}, and some {FEW_TEXTS} to mean "
            f"anything, got {num_texts}; generate more"
        )
    if scaling <= 0 or not seeds:
        raise ValueError(f"scaling must be above 0 and seeds at least one, got {scaling} and {list(seeds)}")
    if num_texts < FEW_TEXTS:
        logger.warning("MAUVE of %d texts is noisy and too high; %d or more are advised", num_texts, FEW_TEXTS)


def _matrices(features: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    ours, theirs = (np.asarray(side, dtype=np.float32) for side in features)
    if ours.ndim != 2 or theirs.ndim != 2 or ours.shape[1] != theirs.shape[1]:
        raise ValueError(
            f"features must be two matrices (texts, width) of one width, got shapes {ours.shape} and {theirs.shape}"
        )
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        raise ValueError("features must be finite, got nan or inf; try the feature model in float32")
    return ours, theirs
