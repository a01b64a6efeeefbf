"""See how a model's output embeddings lie: in a narrow cone, or in all directions; and compare several models.

    python recipes/inspect_embeddings.py MODEL
    python recipes/inspect_embeddings.py MODEL OTHER --dataset wikitext-2

MODEL is a folder or a name on the Hub. It writes a page, `embeddings.html`, with its figures beside it and the numbers
in `embeddings.json`. With a text it also tells how norms go with frequencies, and whether one direction is negative
with all hidden states. Without a model, in seconds: `recipes/settings/inspect_embeddings/smoke.yaml`.
Notes and what is measured: recipes/cosine.md.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from transformers import AutoTokenizer

from hf_targets import (
    Inspection,
    TextSettings,
    field_of,
    inspect_embeddings,
    inspection_columns,
    inspection_numbers,
    parse_settings,
    read_word_vectors,
    shown_command,
    softmax_inputs,
    text_batches,
    token_frequencies,
    train_digit_classifier,
    train_word_vectors,
    write_inspection,
    write_json,
)
from hf_targets.backbones.positions import max_positions
from hf_targets.markdown import markdown_table
from hf_targets.named_models import load_language_model, model_at
from hf_targets.training.outputs import check_output_folder


@dataclass
class Setup(TextSettings):
    """Whose embeddings are looked at."""

    leading_setting: ClassVar[str] = "models"

    models: list[str] = field(default_factory=list, metadata={"help": "Names or folders of models, one or several."})
    dataset: str | None = field_of(  # pyright: ignore[reportIncompatibleVariableOverride]
        TextSettings, "dataset", None, note="For frequencies and hidden states; None: without them."
    )
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
            raise ValueError("there must be embeddings to look at; give a model, word_vectors, word2vec or classifier")
        if self.word2vec and self.dataset is None:
            raise ValueError("word2vec is trained on a text; give --dataset")
        if len(set(self.models)) < len(self.models):
            raise ValueError(f"models must name each model once, got {', '.join(self.models)}")
        check_output_folder(Path(self.output_dir))
        if self.num_states < 0:
            raise ValueError(f"num_states must be 0 or more, got {self.num_states}; 0 asks for no direction")


def inspect_model(name: str, texts: list[str] | None, num_states: int) -> Inspection:
    """Return what there is to know of a model's embeddings, on a text if there is one."""
    model = load_language_model(name)
    if texts is None:
        return inspect_embeddings(model)
    with model_at(name, "tokenizer of a model", "put its files beside the model, or leave out --dataset"):
        tokenizer = AutoTokenizer.from_pretrained(name)
    frequencies = token_frequencies(texts, tokenizer, len(model.get_output_embeddings().weight))
    states = None
    if num_states and not model.config.is_encoder_decoder:
        length = min(64, max_positions(model.config) or 64)
        states = softmax_inputs(model, text_batches(texts, tokenizer, length), num_states)
    return inspect_embeddings(model, frequencies=frequencies, hidden_states=states)


def main() -> None:
    """Look at all embeddings, print the table, and leave the page, its figures and the numbers."""
    (setup,) = parse_settings(Setup)
    texts = None if setup.dataset is None else setup.load()["train"]["text"][:]
    found: dict[str, Inspection] = {}
    for model in setup.models:
        name = Path(model).name
        found[model if name in found else name] = inspect_model(model, texts, setup.num_states)
    if setup.word_vectors is not None:
        found[f"vectors of {Path(setup.word_vectors).name}"] = inspect_embeddings(read_word_vectors(setup.word_vectors))
    if setup.word2vec:
        assert texts is not None
        found["word2vec"] = inspect_embeddings(train_word_vectors(texts))
    if setup.classifier:
        digits = train_digit_classifier()
        found["digits"] = inspect_embeddings(digits.weight, hidden_states=digits.hidden_states, labels=digits.labels)
    page = write_inspection(found, setup.output_dir, footer=shown_command(sys.argv))
    numbers = {name: inspection_numbers(one) for name, one in found.items()}
    write_json(Path(setup.output_dir, "embeddings.json"), numbers)
    print(f"{markdown_table(*inspection_columns(found), num_names=1)}\n\nPage and figures: {page}")


if __name__ == "__main__":
    main()
