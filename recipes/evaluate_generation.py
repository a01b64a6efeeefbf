"""Let models continue the same prefixes, with phrases of retrieved documents where they can, and print table 1.

For each prefix of 32 tokens the documents nearest to it are taken from the training text; all their windows of 2 to 8
tokens are its phrases, and 128 tokens are generated, whatever number of steps that takes:
    python recipes/evaluate_generation.py recipes/settings/evaluate_generation/cpu.yaml

A model with a phrase encoder is measured with phrases. `{seed}` in a model's name stands for each of `--seeds`: the
model of that seed samples with that seed. Tables have means and standard errors over seeds, then 95% intervals over
prefixes. As the paper measures, MAUVE on GPT-2 large's features: `.../paper.yaml`.
"""

from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path

from transformers import AutoTokenizer

from hf_targets import (
    ContinuationSettings,
    PairwiseJudge,
    SeedSettings,
    TextComparison,
    format_preferences,
    load_model,
    parse_settings,
    write_json,
)
from hf_targets.training.outputs import check_output_files


@dataclass
class Setup(SeedSettings, ContinuationSettings):
    """Which models continue which prefixes."""

    models: list[str] = field(
        default_factory=list,
        metadata={"help": "Names or folders, with {seed} or without; the first one's tokenizer is that of all."},
    )
    judge: str | None = field(default=None, metadata={"help": "Model that scores the texts. None: each seed's first."})
    pairwise_judge: str | None = field(
        default=None, metadata={"help": "Model that compares texts with the first model's, in both orders. None: none."}
    )
    output: str | None = field(default=None, metadata={"help": "A JSON file for texts and figures."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.models or len(set(self.models)) < len(self.models):
            raise ValueError(f"models must name at least one model, and each once, got {self.models}")
        check_output_files(output=self.output)


def main() -> None:
    """Measure the models with every seed and print their table."""
    (setup,) = parse_settings(Setup)
    tokenizer = AutoTokenizer.from_pretrained(setup.models[0].replace("{seed}", str(setup.seeds[0])))
    texts = setup.load()
    prefixes = setup.prefixes(texts, tokenizer)
    phrases_of = setup.phrases_of_documents(texts["train"]["text"], tokenizer)
    compared = TextComparison(setup, prefixes, tokenizer, phrases_of)
    for seed, name in product(setup.seeds, setup.models):
        if seed != setup.seeds[0] and "{seed}" not in name and not setup.do_sample:
            continue  # the same model writes the same text
        model = load_model(name.replace("{seed}", str(seed)), dtype=setup.dtype)
        judge = (setup.judge or setup.models[0]).replace("{seed}", str(seed))
        columns = compared.add(name, model, judge, seed=seed)
        print(f"{name}, seed {seed}: diversity {columns['diversity']:.1f}", flush=True)
    print(f"\n{compared.tables()}")
    content = {"settings": asdict(setup), "figures": compared.figures, "texts": compared.texts}
    if setup.output is not None:
        write_json(Path(setup.output), content)
    if (name := setup.pairwise_judge) is not None:
        pairwise = PairwiseJudge(load_model(name), AutoTokenizer.from_pretrained(name))
        prompts = [str(tokenizer.decode(prefix.tokens)) for prefix in prefixes]
        preferences = pairwise.compare_with_first(prompts, compared.texts)
        print(f"\nShares of texts that {name} finds better than the first model's:\n")
        print(format_preferences(preferences))
        if setup.output is not None:
            content["preferences"] = {name: asdict(one) for name, one in preferences.items()}
            write_json(Path(setup.output), content)


if __name__ == "__main__":
    main()
