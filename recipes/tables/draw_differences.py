"""Draw the targets of a text's words in two dimensions: output embeddings, and word differences of levels 1 and 2.

    python recipes/tables/draw_differences.py --model_name_or_path MODEL --dataset ptb

MODEL is a folder or a name of any language model with output embeddings: causal, masked, of pairs, with heads or
without. Writes `differences.png` and the points in `differences.json`, and prints how diverse the targets of each level
are. Penn Treebank has some 20 words a sentence: about 60 sentences make as many vectors as the paper's figure has of
its 10. On a small model: `recipes/settings/tables/draw_differences/smoke.yaml`. Notes: recipes/multitoken.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import random
from dataclasses import asdict, dataclass, field
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, set_seed

from hf_targets import word_level_tokenizer
from lab.differences import map_targets, plot_differences, target_diversity, target_vectors
from lab.embeddings import load_language_model
from lab.results import shareable, write_json
from lab.settings import parse_settings
from lab.tables import markdown_table
from lab.text import TextSettings


@dataclass
class Setup(TextSettings):
    """Whose embeddings are drawn, and of which sentences."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "A language model. None: a small one with random weights."}
    )
    num_sentences: int = field(default=10, metadata={"help": "Sentences of the test text, drawn at random."})
    word: str = field(default="to", metadata={"help": "The word that the third panel is around."})
    perplexity: float = field(default=30.0, metadata={"help": "Of t-SNE."})
    seed: int = field(default=0, metadata={"help": "Of the sentences and of t-SNE."})
    output_dir: str = field(default="runs/draw_differences", metadata={"help": "Folder of the figure."})


def load(setup: Setup, texts: Any) -> tuple[Any, Any]:
    """Return the model and its tokenizer."""
    if setup.model_name_or_path is None:
        tokenizer = word_level_tokenizer(texts["train"]["text"])
        set_seed(setup.seed)
        config = GPT2Config(vocab_size=len(tokenizer), n_positions=8, n_embd=32, n_layer=1, n_head=2)
        return AutoModelForCausalLM.from_config(config), tokenizer
    return load_language_model(setup.model_name_or_path), AutoTokenizer.from_pretrained(setup.model_name_or_path)


def main(setup: Setup) -> None:
    """Draw the figure, and print how diverse the targets are."""
    folder = Path(setup.output_dir)
    texts = setup.load()
    model, tokenizer = load(setup, texts)
    lines = [line.strip() for text in texts["test"]["text"] for line in text.splitlines()]
    lines = [line for line in lines if len(tokenizer(line, add_special_tokens=False, verbose=False)["input_ids"]) > 2]
    levels = target_vectors(model, tokenizer, random.Random(setup.seed).sample(lines, setup.num_sentences))
    points = map_targets(levels, perplexity=setup.perplexity, seed=setup.seed)
    found = [target_diversity(one) for one in levels]
    folder.mkdir(parents=True, exist_ok=True)
    plot_differences(levels, points, setup.word, folder / "differences.png")
    content = [
        {**asdict(diversity), "words": one.words, "before": one.before, "points": at.tolist()}
        for diversity, one, at in zip(found, levels, points, strict=True)
    ]
    write_json(folder / "differences.json", {"settings": shareable(asdict(setup)), "levels": content})
    cells = [[str(d.level), str(d.num_targets), f"{d.mean_cosine:.3f}", f"{d.within_words:.3f}"] for d in found]
    heads = ("level", "targets", "mean cosine", "variance within words")
    print(f"{markdown_table(heads, cells, num_names=0)}\n\nFigure and points: {folder}")


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
