"""Output embeddings of a text's words and their differences: how diverse they are, and a figure in two dimensions."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

_NAMED = 4  # frequent words with a colour and a name
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

    def is_whole(self) -> list[bool]:
        """Return for each vector whether all of its words exist."""
        return [self.level == 0 or before is not None for before in self.before]


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
    if short := [text for text, ids in zip(sentences, rows, strict=True) if len(ids) <= max_level]:
        raise ValueError(f"sentences must have more than {max_level} tokens, got {short[0][:60]!r}; leave it out")
    names, found = _names({id_ for ids in rows for id_ in ids}, tokenizer), []
    with torch.no_grad():
        embedded = [embedding_rows(layer, torch.tensor(ids, device=model.device)).float().cpu() for ids in rows]
        for level in range(max_level + 1):
            vectors = torch.cat([word_differences(one[None], level)[0] for one in embedded])
            words, before = [], []
            for ids in rows:
                for at, id_ in enumerate(ids):
                    target = at + level
                    words.append(names[ids[target] if target < len(ids) else id_])
                    before.append(names[ids[target - 1]] if level and target < len(ids) else None)
            found.append(TargetVectors(level, vectors, words, before))
    return found


def _names(ids: set[int], tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Return a name of each token, which no other has."""
    texts = {id_: str(tokenizer.decode([id_])).strip() for id_ in ids}
    counts = Counter(texts.values())
    written = {id_: str(tokenizer.convert_ids_to_tokens([id_])[0]) for id_ in ids}
    return {id_: text if text and counts[text] == 1 else written[id_] for id_, text in texts.items()}


def target_diversity(targets: TargetVectors) -> TargetDiversity:
    """Return how diverse the targets of a level are, over the vectors whose words all exist, at least two."""
    kept = torch.tensor(targets.is_whole())
    vectors = targets.vectors[kept].double()
    words = [word for word, whole in zip(targets.words, kept.tolist(), strict=True) if whole]
    if len(words) < 2:
        raise ValueError(f"diversity compares targets, and needs at least 2, got {len(words)}; give more text")
    count = len(words)
    mean_cosine = (F.normalize(vectors, dim=1).sum(0).square().sum() - count) / (count * (count - 1))
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    groups = torch.tensor([numbers[word] for word in words])
    sums = torch.zeros(len(numbers), vectors.shape[1], dtype=vectors.dtype).index_add(0, groups, vectors)
    means = sums / groups.bincount()[:, None]
    within, total = (vectors - means[groups]).square().sum(), (vectors - vectors.mean(0)).square().sum()
    share = (within / total).item() if total else 0.0
    return TargetDiversity(targets.level, count, mean_cosine.item(), share)


def map_targets(
    levels: Sequence[TargetVectors], *, perplexity: float = 30.0, seed: int = 0
) -> list[Float[Tensor, "tokens 2"]]:
    """Return the vectors of all levels, reduced together to two dimensions by t-SNE: one tensor for each level.

    The perplexity is scikit-learn's default; the paper gives none.
    """
    together = torch.cat([one.vectors for one in levels])
    require("sklearn", extra="figures")
    from sklearn.manifold import TSNE

    reduced = TSNE(n_components=2, perplexity=perplexity, random_state=seed, init="pca").fit_transform(together.numpy())
    return list(torch.from_numpy(reduced).split([len(one.words) for one in levels]))


def plot_differences(levels: Sequence[TargetVectors], points: Sequence[Tensor], word: str, path: Path | str) -> None:
    """Draw a PNG of four panels: embeddings, level 1, level 1 around a word, and level 2.

    Targets of the most frequent words are coloured and named. In the panel around the word, a point named "to-want" is
    the embedding of "to" minus that of the "want" before it.

    The levels are 0 to 2, of `target_vectors`, the points of `map_targets`; the word is a target of level 1.
    """
    known = {name for name, before in zip(levels[1].words, levels[1].before, strict=True) if before is not None}
    if word not in known:
        raise ValueError(f"{word!r} must follow a word in the sentences; give another, such as {sorted(known)[:5]}")
    frequent = [name for name, _ in Counter(levels[0].words).most_common(_NAMED)]
    colours = {name: f"C{number}" for number, name in enumerate(dict.fromkeys([word, *frequent]))}
    figure = new_figure(18, 4.8)
    panels = figure.subplots(1, 4)
    titles = ("embeddings", "level 1", f"level 1, around {word!r}", "level 2")
    for axes, title, number in zip(panels, titles, (0, 1, 1, 2), strict=True):
        _scatter(axes, levels[number], points[number], colours)
        axes.set_title(title)
        axes.set_xticks([])
        axes.set_yticks([])
    _name_places(panels[0], levels[0], points[0], colours)
    _zoom(panels[2], levels[1], points[1], word)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    figure.savefig(path)


def _scatter(axes: Any, one: TargetVectors, at: Tensor, colours: dict[str, str]) -> None:
    others = [number for number, name in enumerate(one.words) if name not in colours]
    axes.scatter(*at[others].T.tolist(), s=6, color="0.75", label="other words")
    for name, colour in colours.items():
        own = [number for number, found in enumerate(one.words) if found == name]
        axes.scatter(*at[own].T.tolist(), s=12, color=colour, label=_label(name))


def _name_places(axes: Any, one: TargetVectors, at: Tensor, colours: dict[str, str]) -> None:
    """Name the middle of each frequent word's embeddings."""
    for name, colour in colours.items():
        own = [number for number, found in enumerate(one.words) if found == name]
        if own:
            middle = at[own].median(dim=0).values.tolist()
            box = {"facecolor": "white", "edgecolor": colour, "alpha": 0.85, "boxstyle": "round,pad=0.15"}
            place = {"xytext": (8, 8), "textcoords": "offset points"}
            axes.annotate(_shown(name), middle, color=colour, weight="bold", bbox=box, zorder=5, **place)


def _zoom(axes: Any, one: TargetVectors, at: Tensor, word: str) -> None:
    """Show the box of most of the word's targets, and name them, the labels in two columns beside the points."""
    own = [n for n, (name, before) in enumerate(zip(one.words, one.before, strict=True)) if name == word and before]
    middle = at[own].median(dim=0).values
    near = sorted(own, key=lambda number: (at[number] - middle).square().sum().item())[:_LABELS]
    low, high = at[near].min(dim=0).values, at[near].max(dim=0).values
    width, height = (high - low).clamp(min=1.0).tolist()
    left, bottom = low.tolist()
    axes.set_xlim(left - 0.9 * width, left + 1.9 * width)
    axes.set_ylim(bottom - 0.15 * height, bottom + 1.15 * height)
    by_side = sorted(near, key=lambda number: at[number, 0].item())
    half = (len(by_side) + 1) // 2
    for side, numbers in ((-1, by_side[:half]), (1, by_side[half:])):
        for place, number in enumerate(sorted(numbers, key=lambda number: at[number, 1].item())):
            height_of = bottom - 0.05 * height + 1.1 * height * (place + 0.5) / len(numbers)
            column = left - 0.15 * width if side < 0 else left + 1.15 * width
            line = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.6}
            looks: Any = {"ha": "right" if side < 0 else "left", "va": "center", "fontsize": 8, "arrowprops": line}
            name = _shown(f"{word}-{one.before[number]}")
            axes.annotate(name, at[number].tolist(), xytext=(column, height_of), **looks)


def _shown(name: str) -> str:
    return name.replace("$", r"\$")  # else matplotlib reads mathematics


def _label(name: str) -> str:
    return _shown(f" {name}" if name.startswith("_") else name)  # a legend leaves out labels that begin with "_"
