"""Let models continue the same prefixes, with phrases of retrieved documents where they can, and print table 1.

For each prefix of 32 tokens the documents nearest to it are taken from the training text; all their windows of 2 to 8
tokens are its phrases, and 128 tokens are generated, whatever number of steps that takes:
    python recipes/tables/evaluate_generation.py recipes/settings/tables/evaluate_generation/cpu.yaml

A model with a phrase encoder is measured with phrases. `{seed}` in a model's name stands for each of `--seeds`: the
model of that seed samples with that seed. Tables have means and standard errors over seeds, then 95% intervals over
prefixes. As the paper measures, MAUVE on GPT-2 large's features: `.../paper.yaml`. Other systems
that use documents, such as kNN-LM and prompt lookup: recipes/tables/compare_systems.py.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

from dataclasses import asdict, dataclass, field
from itertools import product

from transformers import AutoTokenizer

from lab.continuations import ComparisonSettings, TextComparison, load_model
from lab.pairwise import format_preferences, preferences_by_aspect, write_pairs
from lab.results import shareable, write_json
from lab.settings import parse_settings


@dataclass
class Setup(ComparisonSettings):
    """Which models continue which prefixes."""

    models: list[str] = field(
        default_factory=list,
        metadata={"help": "Names or folders, with {seed} or without; the first one's tokenizer is that of all."},
    )
    seeds: list[int] = field(default_factory=lambda: [0], metadata={"help": "Each model writes with each."})
    judge: str | None = field(default=None, metadata={"help": "Model that scores the texts. None: each seed's first."})
    pairs_for_annotators: str | None = field(
        default=None,
        metadata={"help": "Folder of a page of blind pairs, the last model against each other one."},
    )
    output: str | None = field(default=None, metadata={"help": "A JSON file for texts and figures."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.models or len(set(self.models)) < len(self.models):
            raise ValueError(f"models must name at least one model, and each once, got {self.models}")


def main(setup: Setup) -> None:
    """Measure the models with every seed and print their table."""
    tokenizer = AutoTokenizer.from_pretrained(setup.models[0].replace("{seed}", str(setup.seeds[0])))
    texts = setup.load()
    prefixes = setup.prefixes(texts, tokenizer)
    phrases_of = setup.phrases_of_documents(texts["train"]["text"], tokenizer)
    multiword = setup.multiword(tokenizer, texts["train"]["text"])
    compared = TextComparison(setup, prefixes, tokenizer, phrases_of, multiword=multiword)
    for seed, name in product(setup.seeds, setup.models):
        if seed != setup.seeds[0] and "{seed}" not in name and not setup.do_sample:
            continue  # the same model writes the same text
        model = load_model(name.replace("{seed}", str(seed)), dtype=setup.dtype)
        judge = (setup.judge or setup.models[0]).replace("{seed}", str(seed))
        columns = compared.add(name, model, judge, seed=seed)
        print(f"{name}, seed {seed}: diversity {columns['diversity']:.1f}", flush=True)
    print(f"\n{compared.tables()}")
    prompts = [str(tokenizer.decode(prefix.tokens)) for prefix in prefixes]
    content = {"settings": shareable(asdict(setup)), "figures": compared.figures, "texts": compared.texts}
    if setup.output is not None:
        write_json(Path(setup.output), content)  # before a judge, who may fail
    if (name := setup.pairwise_judge) is not None:
        print(f"\nShares of texts that {name} finds better than the first model's:\n")
        preferences = preferences_by_aspect(name, prompts, compared.texts)
        print(format_preferences(preferences))
        content["preferences"] = {name: asdict(one) for name, one in preferences.items()}
    if (folder := setup.pairs_for_annotators) is not None:
        write_pairs(folder, prompts, {name: texts[0] for name, texts in compared.texts.items()}, seed=setup.seeds[0])
        print(f"\nPairs to judge are in {folder}; count the answers with recipes/tables/score_annotations.py")
    if setup.output is not None:
        write_json(Path(setup.output), content)


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
