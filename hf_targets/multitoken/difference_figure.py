"""A figure of a text's targets in two dimensions: embeddings, and word differences of the first two levels."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_targets.figures.canvas import new_figure
from hf_targets.multitoken.difference_map import TargetVectors, check_word

_NAMED = 4  # frequent words with a colour and a name
_LABELS = 14  # points with a name in the panel that is zoomed in


def plot_differences(levels: Sequence[TargetVectors], points: Sequence[Tensor], word: str, path: Path | str) -> None:
    """Draw a PNG of four panels: embeddings, level 1, level 1 around a word, and level 2.

    Targets of the most frequent words are coloured and named. In the panel around the word, a point named "to-want" is
    the embedding of "to" minus that of the "want" before it.

    Args:
        levels: Of `target_vectors` with levels 0 to 2.
        points: Of `map_targets`.
        word: To zoom in on.
    Raises:
        ValueError: If there are not three levels, or the word is no target of level 1.
        ImportError: If matplotlib is missing.
    """
    if [one.level for one in levels] != [0, 1, 2]:
        raise ValueError(f"the figure is of levels 0, 1 and 2, got {[one.level for one in levels]}")
    check_word(levels, word)
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
            axes.annotate(
                _shown(f"{word}-{one.before[number]}"),
                at[number].tolist(),
                xytext=(column, height_of),
                ha="right" if side < 0 else "left",
                va="center",
                fontsize=8,
                arrowprops={"arrowstyle": "-", "color": "0.6", "linewidth": 0.6},
            )


def _shown(name: str) -> str:
    return name.replace("$", r"\$")  # else matplotlib reads mathematics


def _label(name: str) -> str:
    return _shown(f" {name}" if name.startswith("_") else name)  # a legend leaves out labels that begin with "_"
