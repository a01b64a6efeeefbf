"""MAUVE: how close generated texts are to human texts, as distributions over clusters of a language model's features.

The package mauve-text computes the measure. It is under the GNU General Public License, so it is an optional extra and
no part of this library; it is imported only to compute a score.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.positions import longest_text
from hf_targets.backbones.weight_access import execution_device
from hf_targets.data.batches import by_length, padded_rows
from hf_targets.data.progress import progress
from hf_targets.extras import require

LEAST_TEXTS = 100
"""Texts from which on scores tell texts with their words in random order from the text itself (`mauve_score`)."""


def mauve_score(
    texts: Sequence[str],
    references: Sequence[str],
    *,
    feature_model: str | PreTrainedModel = "gpt2-large",
    tokenizer: PreTrainedTokenizerBase | None = None,
    scaling: float = 2.0,
    seed: int = 25,
    max_length: int | None = None,
    batch_size: int = 8,
) -> float:
    """Return the MAUVE score of generated texts against references, in [0, 1]; the papers print it times 100.

    Compare scores only of as many texts, with the same feature model, scaling and length. A score of fewer than about
    1,000 texts is noisy and too high. The seed is of the clustering: several show how much the score depends on it. Of
    fewer than 100 texts, clusters are too few to tell good texts from bad ones (recipes/LOG.md).

    Args:
        texts: Generated texts with their prefixes.
        references: As many human texts with the same prefixes, best cut to the lengths of the generated texts.
        feature_model: A model with hidden states, or its name; GPT-2 large in the papers.
        tokenizer: The tokenizer of the feature model; None: loaded by the model's name.
        scaling: The constant c of the divergence curve: 2 in Liu et al. (dynamic vocabulary) and Lan et al. 2023, 5 in
            mauve-text; a larger c gives lower scores.
        max_length: As in `text_features`; 512 in Lan et al. 2023.
        batch_size: As in `text_features`.
    Raises:
        ImportError: If mauve-text is not installed (extra `eval`).
        ValueError: If texts and references differ in number, or there are fewer than 100.
    Source: Pillutla et al. 2021 and 2023; Liu et al., appendix C.
    """
    if len(texts) != len(references) or len(texts) < LEAST_TEXTS:
        raise ValueError(
            f"MAUVE needs as many texts as references, {LEAST_TEXTS} or more, got {len(texts)} and {len(references)}: "
            "fewer make too few clusters to tell good texts from bad ones"
        )
    compute = require("mauve", extra="eval").compute_mauve  # fails before the slow computation of features
    model = AutoModel.from_pretrained(feature_model) if isinstance(feature_model, str) else feature_model
    tokenizer = tokenizer or AutoTokenizer.from_pretrained(model.name_or_path)
    generated, human = (
        text_features(side, model, cast(Any, tokenizer), max_length=max_length, batch_size=batch_size)
        for side in (texts, references)
    )
    # in the order of the papers' program, on which the clustering and so the score depend a little
    options = {"mauve_scaling_factor": scaling, "seed": seed, "verbose": False}
    return float(compute(p_features=human, q_features=generated, **options).mauve)


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
        ValueError: If a text has no token, or a feature is not finite.
    """
    max_length = max_length or min(1024, longest_text(model) or 1024)  # some models have no last position
    encoded = tokenizer(list(texts), truncation=True, max_length=max_length, verbose=False)["input_ids"]
    rows = [torch.tensor(ids, dtype=torch.long) for ids in cast(list[list[int]], encoded)]
    if not all(map(len, rows)):
        raise ValueError("a text must have a token, as its last hidden state is its feature; leave out empty texts")
    features: dict[int, np.ndarray] = {}
    backbone: Any = model
    while backbone.base_model is not backbone:
        backbone = backbone.base_model
    with without_dropout(model), progress(len(rows), "encoding texts for MAUVE", unit="text") as bar:
        for indices in by_length(list(map(len, rows)), batch_size):
            ids, mask = padded_rows([rows[index] for index in indices])
            place = execution_device(model)
            output = backbone(input_ids=ids.to(place), attention_mask=mask.to(place), return_dict=True)
            last = output.last_hidden_state[torch.arange(len(indices)), (mask.sum(dim=1) - 1).to(place)]
            features |= zip(indices, last.float().cpu().numpy(), strict=True)
            bar.update(len(indices))
    found = np.stack([features[index] for index in range(len(rows))])
    if not np.isfinite(found).all():
        raise ValueError("features must be finite, got nan or inf; try the feature model in float32")
    return found
