"""See how the output embeddings of models lie: in a narrow cone, or in all directions.

    python recipes/inspect_embeddings.py --models MODEL OTHER --dataset wikitext-2

A model is a folder or a name on the Hub. It writes a page, `embeddings.md`, with its figures beside it, and the numbers
in `results.json`. With a text it also tells how norms go with frequencies, and whether one direction is negative with
all hidden states. Without a model, in seconds: `recipes/settings/inspect_embeddings/smoke.yaml`. Measured:
recipes/cosine.md.
"""

from dataclasses import dataclass, field
from pathlib import Path

from transformers import AutoTokenizer

from hf_targets import load_corpus, softmax_inputs
from hf_targets.backbones.positions import max_positions
from lab.card import command_line
from lab.embedding_figures import write_figures
from lab.embeddings import (
    Inspection,
    inspect_embeddings,
    inspection_rows,
    read_word_vectors,
    text_batches,
    token_frequencies,
    train_digit_classifier,
    train_word_vectors,
)
from lab.models import load_language_model
from lab.results import write_results
from lab.settings import parse_settings
from lab.tables import markdown_table


@dataclass
class Setup:
    """Whose embeddings are looked at."""

    models: list[str] = field(default_factory=list, metadata={"help": "Names or folders of models, one or several."})
    dataset: str | None = field(
        default=None, metadata={"help": "Corpus for frequencies and hidden states; None: without them."}
    )
    max_train_words: int | None = field(default=None, metadata={"help": "Read so many words of it only."})
    num_states: int = field(
        default=5000, metadata={"help": "Hidden states of this text that a direction must be negative with. 0: none."}
    )
    word_vectors: str | None = field(
        default=None, metadata={"help": "File in the format of word2vec, for comparison; binary if its name has .bin."}
    )
    word2vec: bool = field(default=False, metadata={"help": "Train word2vec on the text, for comparison."})
    classifier: bool = field(default=False, metadata={"help": "Train a classifier of digits, for comparison."})
    output_dir: str = field(default="runs/inspect_embeddings", metadata={"help": "Folder of the page."})

    def __post_init__(self) -> None:
        if not (self.models or self.word_vectors or self.word2vec or self.classifier):
            raise ValueError("there must be embeddings to look at; give models, word_vectors, word2vec or classifier")
        if self.word2vec and self.dataset is None:
            raise ValueError("word2vec is trained on a text; give a dataset")


def inspect_model(name: str, texts: list[str] | None, num_states: int) -> Inspection:
    """Return what there is to know of a model's embeddings, on a text if there is one."""
    model = load_language_model(name)
    if texts is None:
        return inspect_embeddings(model)
    tokenizer = AutoTokenizer.from_pretrained(name)
    frequencies = token_frequencies(texts, tokenizer, len(model.get_output_embeddings().weight))
    states = None
    if num_states and not model.config.is_encoder_decoder:
        length = min(64, max_positions(model.config) or 64)
        states = softmax_inputs(model, text_batches(texts, tokenizer, length), num_states)
    return inspect_embeddings(model, frequencies=frequencies, hidden_states=states)


def main(setup: Setup) -> None:
    """Look at all embeddings, print the table, and leave the page, its figures and the numbers."""
    texts = None
    if setup.dataset is not None:
        texts = load_corpus(setup.dataset, max_train_words=setup.max_train_words)["train"]["text"][:]
    found = {Path(name).name: inspect_model(name, texts, setup.num_states) for name in setup.models}
    if setup.word_vectors is not None:
        found[Path(setup.word_vectors).name] = inspect_embeddings(read_word_vectors(setup.word_vectors))
    if setup.word2vec and texts is not None:
        found["word2vec"] = inspect_embeddings(train_word_vectors(texts))
    if setup.classifier:
        weight, states, labels = train_digit_classifier()
        found["digits"] = inspect_embeddings(weight, hidden_states=states, labels=labels)
    folder, table = Path(setup.output_dir), markdown_table(["", *found], inspection_rows(found))
    write_results(folder, {name: one.numbers() for name, one in found.items()})
    page = f"# Embeddings\n\n{table}\n\n{write_figures(found, folder)}\n\nCommand: `{command_line()}`\n"
    (folder / "embeddings.md").write_text(page, encoding="utf-8")
    print(f"{table}\n\nPage and figures: {folder / 'embeddings.md'}")


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
