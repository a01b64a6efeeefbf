"""MAUVE: how close generated texts are to human texts, as distributions over clusters of a language model's features.

The package mauve-text computes the measure. It is under the GNU General Public License, so it is an optional extra and
no part of this library; it is imported only to compute a score.
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
from hf_targets.backbones.positions import max_positions
from hf_targets.backbones.weight_access import execution_device
from hf_targets.data.batches import by_length, padded_rows
from hf_targets.data.progress import progress
from hf_targets.extras import require

GIVEN = "given features"
"""The name of the feature model if the caller gave features."""

TEXTS_PER_BUCKET = 10
FEW_TEXTS = 1000

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Mauve:
    """MAUVE scores and their settings. Compare scores only if all settings, from `seeds` on, are equal.

    Attributes:
        scores: One for each seed of the clustering, in [0, 1]; the papers print them times 100.
        smoothed_scores: The same with smoothed histograms (mauve*), which are less optimistic about rare clusters.
        frontier_integrals: One for each seed, in [0, 1]; lower is closer. They do not depend on `scaling`.
        seeds: Seeds of the clustering.
        scaling: The constant c of the divergence curve; a larger c gives lower scores.
        num_buckets: Number of clusters.
        num_texts: Number of generated texts, and of references.
        feature_model: Name of the model that computed the features, or `GIVEN`.
        max_length: The features depend on at most this number of tokens of a text; None for given features.
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
        """Return the standard deviation over seeds. It shows the effect of the clustering, not that of the texts."""
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
        texts: Generated texts with their prefixes; None if features are given.
        references: As many human texts with the same prefixes, best cut to the lengths of the generated texts.
        features: Two arrays (texts, width), for the texts and the references; they replace a feature model.
        feature_model: A model with hidden states, or its name; GPT-2 large in the papers.
        tokenizer: The tokenizer of the feature model; None: loaded by the model's name.
        scaling: The constant c: 2 in Liu et al. (dynamic vocabulary) and Lan et al. 2023, 5 in mauve-text.
        seeds: Seeds of the clustering; several show how much the score depends on it.
        num_buckets: Number of clusters; "auto": a tenth of the number of texts.
        max_length: As in `text_features`; 512 in Lan et al. 2023.
        batch_size: As in `text_features`.
        device: Device of a feature model that is given by name.
    Raises:
        ImportError: If mauve-text is not installed (extra `eval`).
        ValueError: If texts and references differ in number, there are too few of them (below `num_buckets`, or below
            20 for "auto"), features are not two finite matrices of one width, or there is no seed.
    Source: Pillutla et al. 2021 and 2023; Liu et al., appendix C.
    """
    if features is None and (texts is None or references is None):
        raise ValueError("MAUVE compares texts with references, got None for one; give both, or the features of both")
    counts = {len(side) for side in (texts, references, *(() if features is None else features)) if side is not None}
    if len(counts) > 1:
        raise ValueError(
            f"MAUVE needs as many texts as references, as its score depends on both counts, got counts of "
            f"{sorted(counts)}; drop the texts without a reference"
        )
    num_texts, seeds = counts.pop(), tuple(seeds)
    _check_settings(num_texts, num_buckets, scaling, seeds)
    compute = require("mauve", extra="eval").compute_mauve  # fails before the slow computation of features
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
    generated, human = _matrices(sides)
    results = [
        compute(  # in the order of the papers' program, on which the clustering and so the score depend a little
            p_features=human,
            q_features=generated,
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
        seeds=seeds,
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
        model: Any backbone, or a model with a head. It runs on its own device; its dropout is off meanwhile.
        tokenizer: Adds its special tokens. It needs no padding token.
        max_length: Texts are cut after this number of tokens; None: 1024, or the model's positions if they are fewer.
        batch_size: Texts in one forward pass; texts of similar lengths share a pass.
    Raises:
        ValueError: If `texts` is a string or empty, a text has no token, `max_length` is above the model's positions or
            below 1, or `batch_size` is below 1.
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
            place = execution_device(model)
            output = backbone(input_ids=ids.to(place), attention_mask=mask.to(place), return_dict=True)
            last = output.last_hidden_state[torch.arange(len(indices)), (mask.sum(dim=1) - 1).to(place)]
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
            raise ValueError("a feature model without name_or_path needs its tokenizer; give tokenizer=")
        tokenizer = AutoTokenizer.from_pretrained(model.name_or_path)
    return model, cast(PreTrainedTokenizerBase, tokenizer)


def _longest(model: PreTrainedModel, max_length: int | None) -> int:
    positions = max_positions(model.config)  # None for models without a last position
    if max_length is None:
        return 1024 if positions is None else min(1024, positions)
    if max_length < 1 or (positions is not None and max_length > positions):
        rule = "at least 1" if positions is None else f"in [1, {positions}], the model's positions"
        raise ValueError(f"max_length must be {rule}, got {max_length}")
    return max_length


def _check_settings(num_texts: int, num_buckets: int | str, scaling: float, seeds: Sequence[int]) -> None:
    if not (num_buckets == "auto" or (isinstance(num_buckets, int) and num_buckets >= 2)):
        raise ValueError(f'num_buckets must be "auto" or at least 2, got {num_buckets!r}')
    needed = 2 * TEXTS_PER_BUCKET if isinstance(num_buckets, str) else num_buckets
    if num_texts < needed:
        raise ValueError(
            f"MAUVE needs at least {needed} texts for num_buckets={num_buckets!r}, and about {FEW_TEXTS} for a "
            f"meaningful score, got {num_texts}; generate more"
        )
    if not scaling > 0 or not seeds:
        raise ValueError(f"scaling must be above 0, with at least one seed, got {scaling} and seeds {list(seeds)}")
    if num_texts < FEW_TEXTS:
        logger.warning("MAUVE of %d texts is noisy and too high; use %d texts or more", num_texts, FEW_TEXTS)


def _matrices(features: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    if len(features) != 2:
        raise ValueError(f"features must be two matrices, of the texts and of the references, got {len(features)}")
    arrays = (side.detach().float().cpu() if isinstance(side, torch.Tensor) else side for side in features)
    generated, human = (np.asarray(side, dtype=np.float32) for side in arrays)
    if generated.ndim != 2 or human.ndim != 2 or generated.shape[1] != human.shape[1]:
        raise ValueError(
            f"features must be two matrices (texts, width) of one width, got shapes {generated.shape} and {human.shape}"
        )
    if not (np.isfinite(generated).all() and np.isfinite(human).all()):
        raise ValueError("features must be finite, got nan or inf; try the feature model in float32")
    return generated, human
