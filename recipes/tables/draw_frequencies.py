"""Draw how often subwords of parallel text and words of a text occur, over their rank: figure 3 of the cosine paper.

    HF_TARGETS_DATA=data python recipes/tables/draw_frequencies.py \
        recipes/settings/tables/draw_frequencies/multi30k.yaml

`paper.yaml` is of WMT14 and WikiText-2. It writes `frequencies.png`, and prints how many of the words are rare. Notes:
recipes/cosine.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

from collections import Counter
from dataclasses import dataclass, field

import torch

from hf_targets import load_corpus
from hf_targets.figures import new_figure
from lab.embeddings import token_frequencies
from lab.settings import parse_settings
from lab.tables import markdown_table
from lab.text import PairSettings


@dataclass
class Setup(PairSettings):
    """Whose subwords and words are counted."""

    corpus: str = field(default="wikitext-2", metadata={"help": "Corpus whose words are counted, by white space."})
    output_dir: str = field(default="runs/draw_frequencies", metadata={"help": "Folder of the figure."})


def main(setup: Setup) -> None:
    """Count both training texts, draw the figure, and print the table."""
    pairs, folder = setup.load(), Path(setup.output_dir)
    tokenizer, train = setup.tokenizer(None, pairs), pairs["train"]
    subwords = sum(token_frequencies(train[side], tokenizer, len(tokenizer)) for side in ("source", "target"))
    words = Counter(word for text in load_corpus(setup.corpus)["train"]["text"] for word in text.split())
    counts = {f"subwords of {setup.dataset}": torch.as_tensor(subwords), f"words of {setup.corpus}": words.values()}
    rows, figure = [], new_figure(10, 4)
    for axes, (name, of_text) in zip(figure.subplots(1, 2), counts.items(), strict=True):
        found = torch.as_tensor(list(of_text)).sort(descending=True).values
        found = found[found > 0] / found.sum()
        axes.plot(torch.arange(1, len(found) + 1), found)
        axes.set(title=name, xlabel="rank", ylabel="share of the text", yscale="log")
        rows.append([name, f"{len(found):,}", f"{(found < 1e-4).float().mean():.1%}"])
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "frequencies.png")
    print(f"{markdown_table(['', 'kinds', 'of a share below .0001'], rows)}\n\nFigure: {folder / 'frequencies.png'}")


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
