"""See how the output embeddings of models lie: in a narrow cone, or in all directions.

    python recipes/inspect_embeddings.py --models MODEL OTHER --dataset wikitext-2

Figures 1 and 2 of the paper on degeneration, of translation models that are trained first where they are not yet there
(`paper.yaml`: on WMT14):

    HF_TARGETS_DATA=data python recipes/inspect_embeddings.py recipes/settings/inspect_embeddings/multi30k.yaml

A model is a folder or a name on the Hub. It writes a page, `embeddings.md`, with its figures beside it, and the numbers
in `results.json`. With a text it also tells how norms go with frequencies, and whether one direction is negative with
all hidden states. Without a model, in seconds: `recipes/settings/inspect_embeddings/smoke.yaml`. Measured:
recipes/cosine.md.
"""

import lab.start  # noqa: F401

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import train_translation
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, DataCollatorForSeq2Seq

from hf_targets import encode_pairs, load_corpus, pack_blocks
from hf_targets.backbones.positions import max_positions
from hf_targets.cosine.negative_direction import softmax_inputs
from lab.card import command_line
from lab.embedding_figures import write_figures
from lab.embeddings import (
    Inspection,
    inspect_embeddings,
    inspection_rows,
    load_language_model,
    token_frequencies,
    train_digit_classifier,
    train_word_vectors,
)
from lab.results import shareable, write_results
from lab.runs import compare, parse_table, run_folder
from lab.settings import parse_mapping, parse_settings
from lab.tables import markdown_table
from lab.text import PairSettings


@dataclass
class Setup:
    """Whose embeddings are looked at."""

    models: list[str] = field(default_factory=list, metadata={"help": "Names or folders of models, one or several."})
    table: str | None = field(
        default=None,
        metadata={"help": "Settings of tables/train_translation.py: its models, trained if need be, and their pairs."},
    )
    dataset: str | None = field(
        default=None, metadata={"help": "Corpus for frequencies and hidden states; None: without them."}
    )
    pairs: dict[str, Any] | None = field(
        default=None, metadata={"help": "Fields of PairSettings: the text of models with an encoder."}
    )
    max_train_words: int | None = field(default=None, metadata={"help": "Read so many words of it only."})
    num_states: int = field(
        default=5000, metadata={"help": "Hidden states of this text that a direction must be negative with. 0: none."}
    )
    word2vec: bool = field(default=False, metadata={"help": "Train word2vec on the text, for comparison."})
    classifier: str | None = field(
        default=None,
        metadata={
            "help": "Train a classifier of images, for comparison: ylecun/mnist or another data set with the columns "
            "image and label, or digits, scikit-learn's, a stand-in for MNIST that needs no data."
        },
    )
    output_dir: str = field(default="runs/inspect_embeddings", metadata={"help": "Folder of the page."})

    def __post_init__(self) -> None:
        if not (self.models or self.table or self.word2vec or self.classifier):
            raise ValueError("there must be embeddings to look at; give models, a table, word2vec or a classifier")
        if self.word2vec and self.dataset is self.pairs is self.table is None:
            raise ValueError("word2vec is trained on a text; give a dataset, pairs or a table")


def trained_models(file: str) -> tuple[list[str], PairSettings]:
    """Train the models of a table that are not there yet; return the folders of the first seed's, and their pairs."""
    table = parse_table(train_translation, arguments=[file])
    compare(train_translation, **vars(table))
    folders = [str(table.output_dir / run_folder(row, table.seeds[0])) for row in table.rows]
    return folders, parse_mapping({**table.settings, "output_dir": folders[0]}, *train_translation.SETTINGS)[0]


def inspect_model(name: str, texts: Dataset | None, pairs: Dataset | None, num_states: int) -> Inspection:
    """Return what there is to know of a model's embeddings, on a text of its kind if there is one.

    Hidden states of a model with an encoder are those of its decoder, which reads the targets.
    """
    model = load_language_model(name)
    text = pairs if model.config.is_encoder_decoder else texts
    if text is None:
        return inspect_embeddings(model)
    tokenizer, length = AutoTokenizer.from_pretrained(name), max_positions(model.config)
    read = [one for column in ("source", "target", "text") if column in text.column_names for one in text[column]]
    frequencies = token_frequencies(read, tokenizer, len(model.get_output_embeddings().weight))
    if not num_states:
        return inspect_embeddings(model, frequencies)
    rows: Any
    collator = None
    if text is pairs:
        some, collator = text.take(min(num_states, len(text))), DataCollatorForSeq2Seq(tokenizer)
        rows = encode_pairs(some, tokenizer, max_source_length=length, max_target_length=length, truncate=True)
    else:
        rows = pack_blocks(text, tokenizer, min(64, length or 64)).with_format("torch", ["input_ids", "attention_mask"])
    batches = DataLoader(rows, 8, collate_fn=collator)
    return inspect_embeddings(model, frequencies, softmax_inputs(model, batches, num_states))


def main(setup: Setup) -> None:
    """Look at all embeddings, print the table, and leave the page, its figures and the numbers."""
    texts, models = None, list(setup.models)
    of_pairs = None if setup.pairs is None else PairSettings(**setup.pairs)
    if setup.table is not None:
        trained, of_pairs = trained_models(setup.table)
        models += trained
    pairs = None if of_pairs is None else of_pairs.load()["train"]
    if setup.dataset is not None:
        texts = load_corpus(setup.dataset, max_train_words=setup.max_train_words)["train"]
    last = [Path(name).name for name in models]
    labels = [shareable(name) if last.count(short) > 1 else short for name, short in zip(models, last, strict=True)]
    measured = (inspect_model(name, texts, pairs, setup.num_states) for name in models)
    found = dict(zip(labels, measured, strict=True))
    if setup.word2vec:
        read = texts["text"] if texts is not None else pairs["target"]  # pyright: ignore[reportOptionalSubscript]
        found["word2vec"] = inspect_embeddings(train_word_vectors(read))
    if setup.classifier is not None:
        weight, states, labels = train_digit_classifier(setup.classifier)
        found[Path(setup.classifier).name] = inspect_embeddings(weight, states=states, labels=labels)
    folder, table = Path(setup.output_dir), markdown_table(["", *found], inspection_rows(found))
    write_results(folder, {name: one.numbers() for name, one in found.items()})
    page = f"# Embeddings\n\n{table}\n\n{write_figures(found, folder)}\n\nCommand: `{command_line()}`\n"
    (folder / "embeddings.md").write_text(page, encoding="utf-8")
    print(f"{table}\n\nPage and figures: {folder / 'embeddings.md'}")


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
