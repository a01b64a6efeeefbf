"""Let a model write in a domain that it was not trained on, with phrases of that domain instead of training.

Rows: a model trained on another text, the same model fine-tuned on the domain, and models with a phrase encoder,
trained on the other text alone, with phrases of the domain's documents (tables 6, 10, 11 and 15 of the paper):
    python recipes/adapt_domain.py recipes/settings/adapt_domain/cpu.yaml

In a minute, with the models that `train_dynamic_vocab.py` leaves at its smoke settings: `.../smoke.yaml`. As in the
paper, WikiText-103 to LawMT with 512 documents for each prefix: `.../paper.yaml`; there, MAUVE 26.35 and Diversity
82.99 with phrases, 23.06 and 80.21 of a fine-tuned GPT-2. Any text is a domain: --dataset my_text.txt. Measured:
recipes/phrases.md. Each table has greedy decoding or nucleus sampling; NSL is the number of steps of a text.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_targets import (
    BlockSettings,
    DynamicVocabForCausalLM,
    DynamicVocabTrainer,
    DynamicVocabTrainingArguments,
    Experiment,
    ExperimentSettings,
    field_of,
    format_columns,
    pack_blocks,
    parse_settings,
    perplexity_of_blocks,
    repair_reformer,
    run_folder,
    train_run,
    write_json,
)
from lab.continuations import ContinuationSettings, TextComparison, load_model

FINE_TUNED, EMBEDDINGS = "fine-tuned", "phrase-embeddings"


@dataclass
class Setup(ExperimentSettings, ContinuationSettings):
    """Which models write in which domain."""

    dataset: str = field_of(ContinuationSettings, "dataset", "us-code-legal", note="It is the domain.")
    plain: str = field(
        default="", metadata={"help": "A model without phrases, trained on another text; {seed} is each of the seeds."}
    )
    models: list[str] = field(
        default_factory=list, metadata={"help": "Models with phrases, trained on that other text; {seed} as there."}
    )
    num_documents: int = field_of(ContinuationSettings, "num_documents", 512)
    units: str = field_of(ContinuationSettings, "units", "words")
    block_size: int = field_of(BlockSettings, "block_size", 256)
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
        if len({self.plain, *self.models, FINE_TUNED}) < len(self.models) + 2:
            raise ValueError(f"each model is a row of its own, got {[self.plain, *self.models]}; name each once")

    def of_seed(self, name: str, seed: int) -> str:
        """Return a model's name or folder with its seed."""
        return name.replace("{seed}", str(seed))


def fine_tune(setup: Setup, args: Any, corpus: Any, experiment: Experiment, tokenizer: Any) -> None:
    """Train the plain model of each seed on the domain, and leave it with its tokenizer."""
    for seed in setup.seeds:
        run, trainer = train_run(
            FINE_TUNED,
            lambda seed=seed: repair_reformer(AutoModelForCausalLM.from_pretrained(setup.of_seed(setup.plain, seed))),
            args,
            corpus,
            seed=seed,
            resume=experiment.resume,
            begin=experiment.begin,
            make_trainer=DynamicVocabTrainer,
        )
        trainer.save_model(str(experiment.folder_of(FINE_TUNED, seed)))
        if not args.process_index:
            print(f"{FINE_TUNED}, seed {seed}: test perplexity {run.test['perplexity']:.2f}", flush=True)
            tokenizer.save_pretrained(experiment.folder_of(FINE_TUNED, seed))


def main() -> None:
    """Fine-tune, let all models write greedily and by nucleus sampling, and print both tables."""
    setup, args = parse_settings(Setup, DynamicVocabTrainingArguments)
    outputs = ("results.json", EMBEDDINGS)
    experiment = Experiment(setup, args, outputs=outputs, models=[FINE_TUNED], seeds=setup.seeds)
    tokenizer = AutoTokenizer.from_pretrained(setup.of_seed(setup.plain, setup.seeds[0]))
    texts = setup.load()
    corpus: Any = {str(split): pack_blocks(text, tokenizer, setup.block_size) for split, text in texts.items()}
    prefixes = setup.prefixes(texts, tokenizer)
    phrases_of = setup.phrases_of_documents(texts["train"]["text"], tokenizer)
    fine_tune(setup, args, corpus, experiment, tokenizer)
    if args.process_index:
        return
    folder = experiment.folder
    rows = {setup.plain: setup.plain, FINE_TUNED: str(folder / run_folder(FINE_TUNED, "{seed}"))}
    rows |= {name: name for name in setup.models}
    compared = {
        way: TextComparison(setup, prefixes, tokenizer, phrases_of, do_sample=way == "nucleus")
        for way in ("greedy", "nucleus")
    }
    perplexities: dict[str, list[dict[str, float]]] = {name: [] for name in rows}
    for number, seed in enumerate(setup.seeds):
        next_seed = setup.seeds[(number + 1) % len(setup.seeds)]
        judge = setup.of_seed(setup.judge or rows[FINE_TUNED], next_seed)
        for name, where in rows.items():
            model: Any = load_model(setup.of_seed(where, seed))
            if isinstance(model, DynamicVocabForCausalLM):  # the phrases of a document are encoded once for all
                model.keep_phrase_embeddings(folder / EMBEDDINGS)
            perplexities[name].append({"perplexity": perplexity_of_blocks(model, corpus["test"]).per_token})
            model = model if setup.dtype == "auto" else model.to(getattr(torch, setup.dtype))
            for way, comparison in compared.items():
                columns = comparison.add(name, model, judge, seed=seed)
                print(f"{name}, seed {seed}, {way}: diversity {columns['diversity']:.1f}", flush=True)
        tables = {way: comparison.figures for way, comparison in compared.items()}
        written = {way: comparison.texts for way, comparison in compared.items()}
        content = {"settings": asdict(setup), "perplexities": perplexities, "figures": tables, "texts": written}
        write_json(folder / "results.json", content)
    print(f"\nTest text of the domain, without phrases:\n\n{format_columns(perplexities)}")
    for way, comparison in compared.items():
        print(f"\n{way.capitalize()}:\n\n{comparison.tables()}")


if __name__ == "__main__":
    main()
