"""Output embeddings of a text's words and their differences: how diverse they are, and a figure in two dimensions."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.output_matrix import output_embedding
from hf_targets.backbones.weight_access import embedding_rows
from hf_targets.extras import require
from hf_targets.figures import new_figure
from hf_targets.maths.differences import word_differences

_NAMED = 4  # frequent words with a colour
_LABELS = 14  # points with a name in the panel that is zoomed in


@dataclass(frozen=True)
class TargetVectors:
    """The targets of one level, one for each token of some sentences.

    Attributes:
        level: 0 for embeddings, n for n-level word differences.
        words: For each vector the word of the token that it is a target for, the one it begins with.
        before: For each vector the word before that; None at level 0, and for the last `level` vectors of a sentence,
            which are not of this level alone, as no word follows (equations 7 and 8).
    """

    level: int
    vectors: Float[Tensor, "tokens dim"]
    words: list[str]
    before: list[str | None]


@dataclass(frozen=True)
class TargetDiversity:
    """How diverse the targets of a level are, of those whose words all exist.

    It is their mean cosine, in [-1, 1], and the share of their variance that is between targets of one word, in [0, 1].
    """

    level: int
    num_targets: int
    mean_cosine: float
    within_words: float


def target_vectors(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], *, max_level: int = 2
) -> list[TargetVectors]:
    """Return the output embeddings of all tokens of sentences, and their differences up to a level.

    No special tokens are added. A token is named by its text without spaces around it, or as the tokenizer writes it
    where another token of the sentences has the same text, or there is no letter.

    Source: Heo et al., "Diverse Target Representations for Language Models with Word Difference Representations",
        section 4.1.3.
    """
    layer = output_embedding(model)
    rows: list[list[int]] = tokenizer(list(sentences), add_special_tokens=False, verbose=False)["input_ids"]
    names, found = _names({id_ for ids in rows for id_ in ids}, tokenizer), []
    with torch.no_grad():
        embedded = [embedding_rows(layer, torch.tensor(ids, device=model.device)).float().cpu() for ids in rows]
        for level in range(max_level + 1):
            vectors = torch.cat([word_differences(one[None], level)[0] for one in embedded])
            words, before = [], []
            for ids in rows:
                named, num_whole = [names[id_] for id_ in ids], len(ids) - level
                words += named[level:] + named[num_whole:]
                before += (named[level - 1 : -1] if level else [None] * num_whole) + [None] * level
            found.append(TargetVectors(level, vectors, words, before))
    return found


def _names(ids: set[int], tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    texts = {id_: str(tokenizer.decode([id_])).strip() for id_ in ids}
    counts = Counter(texts.values())
    written = {id_: str(tokenizer.convert_ids_to_tokens([id_])[0]) for id_ in ids}
    return {id_: text if text and counts[text] == 1 else written[id_] for id_, text in texts.items()}


def target_diversity(targets: TargetVectors) -> TargetDiversity:
    """Return how diverse the targets of a level are, over the vectors whose words all exist."""
    kept = torch.tensor([targets.level == 0 or before is not None for before in targets.before])
    vectors, words = targets.vectors[kept].double(), np.array(targets.words)[kept.numpy()]
    count = len(words)
    mean_cosine = (F.normalize(vectors, dim=1).sum(0).square().sum() - count) / (count * (count - 1))
    groups = torch.from_numpy(np.unique(words, return_inverse=True)[1])
    sums = torch.zeros(len(groups.unique()), vectors.shape[1], dtype=vectors.dtype).index_add(0, groups, vectors)
    means = sums / groups.bincount()[:, None]
    within, total = (vectors - means[groups]).square().sum(), (vectors - vectors.mean(0)).square().sum()
    return TargetDiversity(targets.level, count, mean_cosine.item(), (within / total).item())


def map_targets(levels: Sequence[TargetVectors], *, perplexity: float = 30.0, seed: int = 0) -> list[np.ndarray]:
    """Return the vectors of all levels, reduced together by t-SNE: for each level (tokens, 2).

    The perplexity is scikit-learn's default; the paper gives none.
    """
    manifold = require("sklearn.manifold", extra="figures")
    together = torch.cat([one.vectors for one in levels]).numpy()
    reduced = manifold.TSNE(n_components=2, perplexity=perplexity, random_state=seed, init="pca").fit_transform(
        together
    )
    return np.split(reduced, np.cumsum([len(one.words) for one in levels])[:-1])


def plot_differences(levels: Sequence[TargetVectors], points: Sequence[np.ndarray], word: str, path: Path) -> None:
    """Draw a PNG of four panels: embeddings, level 1, level 1 around a word, and level 2.

    Targets of the word and of the most frequent words are coloured. In the panel around the word, a point named
    "to-want" is the embedding of "to" minus that of the "want" before it.

    The levels are 0 to 2, of `target_vectors`, the points of `map_targets`; the word is a target of level 1.
    """
    known = {name for name, before in zip(levels[1].words, levels[1].before, strict=True) if before is not None}
    if word not in known:
        raise ValueError(f"{word!r} must follow a word in the sentences; give another, such as {sorted(known)[:5]}")
    frequent = [name for name, _ in Counter(levels[0].words).most_common(_NAMED)]
    figure, names = new_figure(18, 4.8), list(dict.fromkeys([word, *frequent]))
    panels = figure.subplots(1, 4)
    titles = ("embeddings", "level 1", f"level 1, around {word}", "level 2")
    for axes, title, level in zip(panels, titles, (0, 1, 1, 2), strict=True):
        words, at = np.array(levels[level].words), points[level]
        axes.scatter(*at[~np.isin(words, names)].T, s=6, color="0.75", label="other words")
        for number, name in enumerate(names):
            axes.scatter(*at[words == name].T, s=12, color=f"C{number}", label=name)
        axes.set(title=title, xticks=[], yticks=[])
    _zoom(panels[2], levels[1], points[1], word)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(names) + 1)
    figure.savefig(path)


def _zoom(axes: Any, one: TargetVectors, at: np.ndarray, word: str) -> None:
    """Show the box of most of the word's targets, and name them in a column beside the points."""
    own = [n for n, (name, before) in enumerate(zip(one.words, one.before, strict=True)) if name == word and before]
    distances = np.linalg.norm(at[own] - np.median(at[own], axis=0), axis=1)
    near = np.array(own)[distances.argsort()[:_LABELS]]
    near = near[at[near, 1].argsort()]  # from the lowest to the highest
    (left, bottom), (right, top) = at[near].min(axis=0), at[near].max(axis=0)
    width, height = max(right - left, 1.0), max(top - bottom, 1.0)
    axes.set(xlim=(left - 0.1 * width, left + 1.9 * width), ylim=(bottom - 0.15 * height, bottom + 1.15 * height))
    looks: Any = {"va": "center", "fontsize": 8, "arrowprops": {"arrowstyle": "-", "color": "0.6", "linewidth": 0.6}}
    for number, place in zip(near, np.linspace(bottom, bottom + height, len(near)), strict=True):
        name = f"{word}-{one.before[number]}"
        axes.annotate(name, at[number], (left + 1.3 * width, place), parse_math=False, **looks)
