"""Let a model write in a domain that it was not trained on, with phrases of that domain instead of training.

Rows: a model trained on another text, the same model fine-tuned on the domain, and models with a phrase encoder,
trained on the other text alone, with phrases of the domain's documents (tables 6, 10, 11, 14 and 15 of the paper):
    python recipes/tables/adapt_domain.py recipes/settings/tables/adapt_domain/cpu.yaml

In a minute, with the models that `tables/train_dynamic_vocab.py` leaves at its smoke settings: `.../smoke.yaml`. As in
the paper, WikiText-103 to LawMT with 512 documents for each prefix: `.../paper.yaml`; there, MAUVE 26.35 and Diversity
82.99 with phrases, 23.06 and 80.21 of a fine-tuned GPT-2. Any text is a domain: --dataset my_text.txt. Measured:
recipes/phrases.md. Each table has greedy decoding or nucleus sampling.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

from dataclasses import dataclass, field, fields
from typing import Any, Literal

import finetune_gptneo_wdr
import torch
from transformers import AutoTokenizer

from hf_targets import DynamicVocabForCausalLM, MultiTokenTrainingArguments, pack_blocks, perplexity_of_blocks
from lab.continuations import ComparisonSettings, TextComparison, load_model
from lab.pairwise import format_preferences, preferences_by_aspect
from lab.results import write_json
from lab.runs import compare, run_folder
from lab.settings import parse_mapping, stated_settings
from lab.tables import results_table

FINE_TUNED = "fine-tuned"


@dataclass
class Setup(ComparisonSettings):
    """Which models write in which domain."""

    dataset: str = field(default="us-code-legal", metadata={"help": "The domain, as load_corpus finds it."})
    plain: str = field(
        default="", metadata={"help": "A model without phrases, trained on another text; {seed} is each of the seeds."}
    )
    models: list[str] = field(
        default_factory=list, metadata={"help": "Models with phrases, trained on that other text; {seed} as there."}
    )
    seeds: list[int] = field(default_factory=lambda: [0], metadata={"help": "Of the models."})
    num_documents: int = field(default=512, metadata={"help": "Documents of the training text for each prefix."})
    units: Literal["tokens", "words"] = field(default="words", metadata={"help": "Phrases of tokens or whole words."})
    block_size: int = field(default=256, metadata={"help": "Tokens in a row of a batch."})
    judge: str | None = field(
        default=None,
        metadata={"help": "Scores the texts. None: the fine-tuned model of the next seed, never the one that wrote."},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.plain or not self.models:
            raise ValueError("a comparison takes --plain MODEL and --models MODEL ...; give both")
        if self.judge is None and len(self.seeds) < 2:
            raise ValueError("with one seed no other fine-tuned model can judge; give --judge MODEL or more seeds")


def main(setup: Setup, training: dict[str, Any]) -> str:
    """Fine-tune the plain model of each seed, let all models write, and return the tables of both ways to write."""
    folder = Path(training.pop("output_dir"))
    of_text = {name: getattr(setup, name) for name in ("dataset", "dataset_config", "text_column", "block_size")}
    of_text |= {"max_train_words": setup.max_train_words, "target": None, "prompt": None}
    for seed in setup.seeds:
        begun = {**of_text, **training, "model_name_or_path": setup.plain.replace("{seed}", str(seed))}
        compare(finetune_gptneo_wdr, begun, {FINE_TUNED: {}}, [seed], folder)
    tokenizer = AutoTokenizer.from_pretrained(setup.plain.replace("{seed}", str(setup.seeds[0])))
    texts = setup.load()
    test: Any = pack_blocks(texts["test"], tokenizer, setup.block_size)
    prefixes = setup.prefixes(texts, tokenizer)
    phrases_of = setup.phrases_of_documents(texts["train"]["text"], tokenizer)
    multiword = setup.multiword(tokenizer, texts["train"]["text"])

    rows = {setup.plain: setup.plain, FINE_TUNED: str(folder / run_folder(FINE_TUNED, "{seed}"))}
    rows |= {name: name for name in setup.models}
    compared = {
        way: TextComparison(setup, prefixes, tokenizer, phrases_of, do_sample=way == "nucleus", multiword=multiword)
        for way in ("greedy", "nucleus")
    }
    perplexities: dict[str, list[dict[str, float]]] = {name: [] for name in rows}
    for number, seed in enumerate(setup.seeds):
        next_seed = setup.seeds[(number + 1) % len(setup.seeds)]
        judge = (setup.judge or rows[FINE_TUNED]).replace("{seed}", str(next_seed))
        for name, where in rows.items():
            model: Any = load_model(where.replace("{seed}", str(seed)))
            if isinstance(model, DynamicVocabForCausalLM):  # the phrases of a document are encoded once for all
                model.keep_phrase_embeddings(folder / "phrase-embeddings")
            perplexities[name].append({"perplexity": perplexity_of_blocks(model, test).per_token})
            model = model if setup.dtype == "auto" else model.to(getattr(torch, setup.dtype))
            for way, comparison in compared.items():
                columns = comparison.add(name, model, judge, seed=seed)
                print(f"{name}, seed {seed}, {way}: diversity {columns['diversity']:.1f}", flush=True)
    found = {way: {"figures": one.figures, "texts": one.texts} for way, one in compared.items()}
    write_json(folder / "results.json", {"perplexities": perplexities, **found})
    tables = [f"{way.capitalize()}:\n\n{one.tables()}" for way, one in compared.items()]
    if (name := setup.pairwise_judge) is not None:  # table 14; the first model is the one that was not trained on this
        prompts = [str(tokenizer.decode(prefix.tokens)) for prefix in prefixes]
        preferences = preferences_by_aspect(name, prompts, compared["greedy"].texts)
        tables.append(f"Greedy texts that {name} finds better than the first model's:")
        tables.append(format_preferences(preferences))
    tables.append(f"Figures and texts: {folder}/results.json")
    return "\n\n".join(["Test text of the domain, without phrases:", results_table(perplexities), *tables])


if __name__ == "__main__":
    stated = stated_settings(Setup, MultiTokenTrainingArguments, description=__doc__)
    own = {one.name: stated.pop(one.name) for one in fields(Setup) if one.name in stated}
    (setup,) = parse_mapping(own, Setup)
    print(f"\n{main(setup, stated)}")
