"""Train a causal model to use documents: to copy phrases from them (CoG), or to attend to passages of them (RETRO).

    HF_TARGETS_DATA=data python recipes/train_reader.py recipes/settings/train_reader/smollm2_cog.yaml

The documents are those of the training text; a row never reads its own. The result is the loss of the test text, of
RETRO also with passages drawn at random and with none. `tables/compare_systems.py` lets the models write;
recipes/baselines.md has smaller trainings. In seconds, on the model that `make run` leaves: `.../smoke.yaml`.
"""

import lab.start  # noqa: F401

import random
from dataclasses import dataclass, field
from typing import Any, Literal

from transformers import AutoTokenizer, Trainer, TrainingArguments, set_seed

from hf_targets import (
    ChunkNeighbors,
    CopyCollator,
    CopyGenerator,
    RetroForCausalLM,
    add_lora,
    documents_of,
)
from hf_targets.extras import require
from lab.card import finish
from lab.results import timed_training
from lab.runs import run_alone
from lab.text import BlockSettings


@dataclass
class Setup(BlockSettings):
    """Which model learns to read what."""

    kind: Literal["cog", "retro"] = field(default="retro", metadata={"help": "How it uses documents."})
    model_name_or_path: str | None = field(default=None, metadata={"help": "Causal model, with its tokenizer."})
    encoder: str | None = field(
        default=None,
        metadata={"help": "CoG: what its document encoder begins as. RETRO: a sentence encoder; None: TF-IDF."},
    )
    dtype: str = field(default="auto", metadata={"help": "Of the base model."})
    options: dict[str, Any] = field(default_factory=dict, metadata={"help": "Arguments of `from_base`."})
    document_words: int = field(default=100, metadata={"help": "Words of a document, about."})
    num_neighbors: int = field(default=1, metadata={"help": "RETRO: passages of a chunk."})
    lora_rank: int | None = field(default=8, metadata={"help": "CoG: of adapters of the base. None: trained whole."})
    lora_alpha: int = field(default=32, metadata={"help": "The scale of LoRA is this over the rank."})

    def __post_init__(self) -> None:
        if self.model_name_or_path is None or (self.kind == "cog" and self.encoder is None):
            raise ValueError("a trained model learns to read; give --model_name_or_path, and for cog --encoder too")
        if self.streaming:
            raise ValueError("documents are cut from a whole text; leave out streaming")


class RandomDocuments(dict):
    """Documents of which any are found, whatever is asked for."""

    def retrieve(self, queries: list[str], k: int) -> list[list[tuple[str, float]]]:
        """Return k documents for each query."""
        drawn, names = random.Random(len(queries)), list(self)
        return [[(name, 1.0) for name in drawn.sample(names, min(k, len(names)))] for _ in queries]


SETTINGS = (Setup, TrainingArguments)
NEW = {"cog": "document_encoder", "retro": "retro"}
"""Parts that are trained whole, in float32, as many steps are too small for bfloat16, and saved in the base's type."""


def cog(setup: Setup, tokenizer: Any, documents: Any, blocks: Any) -> tuple[Any, Any, dict[str, Any], Any]:
    """Return a model that copies, its collator, the texts that measure it, and the training text."""
    reader: Any = AutoTokenizer.from_pretrained(str(setup.encoder))
    both = {"tokenizer": tokenizer, "encoder_tokenizer": reader}
    base, encoder = str(setup.model_name_or_path), str(setup.encoder)
    model: Any = CopyGenerator.from_base(base, encoder, **both, dtype=setup.dtype, **setup.options)
    if setup.lora_rank is not None:
        model = add_lora(model, setup.lora_rank, alpha=setup.lora_alpha)
    return model, CopyCollator(documents, **both), {"test": blocks["test"]}, blocks["train"]


def retro(setup: Setup, tokenizer: Any, documents: Any, blocks: Any) -> tuple[Any, Any, dict[str, Any], Any]:
    """Return a model that attends to passages, no collator, the texts that measure it, and the training text."""
    model = RetroForCausalLM.from_base(str(setup.model_name_or_path), dtype=setup.dtype, **setup.options)
    sizes = {"chunk_length": model.config.chunk_length, "length": model.config.neighbor_length}
    sizes |= {"k": setup.num_neighbors}
    encoder: Any = setup.encoder and require("sentence_transformers", extra="retrieval").SentenceTransformer(
        setup.encoder
    )
    near = ChunkNeighbors(documents, tokenizer, encoder=encoder, **sizes)
    by_chance = ChunkNeighbors(RandomDocuments(documents), tokenizer, **sizes)
    tests = {"test": near.add_to(blocks["test"]), "by chance": by_chance.add_to(blocks["test"]), "none": blocks["test"]}
    return model, None, tests, near.add_to(blocks["train"])


def main(setup: Setup, args: TrainingArguments) -> dict[str, float]:
    """Train one model, save it, and measure it."""
    texts, tokenizer = setup.load(), AutoTokenizer.from_pretrained(str(setup.model_name_or_path))
    documents, blocks = documents_of(texts["train"]["text"], setup.document_words), setup.blocks(texts, tokenizer)
    rows = args.max_steps * args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    train = blocks["train"].shuffle(seed=args.seed)
    blocks["train"] = train.take(min(rows, len(train))) if rows > 0 else train  # neighbours are found for these alone
    set_seed(args.seed)
    model, collator, tests, train = {"cog": cog, "retro": retro}[setup.kind](setup, tokenizer, documents, blocks)
    new = getattr(model, NEW[setup.kind]).float()
    trainer = Trainer(model, args, train_dataset=train, eval_dataset=tests, data_collator=collator)
    before = trainer.evaluate()
    seconds = timed_training(trainer)
    new.to(model.dtype)
    results = {f"before, {name}": value for name, value in before.items() if name.endswith("_loss")}
    results |= {name: value for name, value in trainer.evaluate().items() if name.endswith("_loss")}
    results["seconds"] = seconds
    if trainer.is_world_process_zero():
        if setup.kind == "cog" and setup.lora_rank is not None:
            model = model.merge_and_unload()
        only = {"retro_only": True} if setup.kind == "retro" and model.config.freeze_base else {}
        model.save_pretrained(str(args.output_dir), **only)
        card = {"base_model": setup.model_name_or_path, "auto_class": type(model).__name__}
        finish(trainer, tokenizer, results, str(results), dataset=setup.dataset, **card)
    return results


if __name__ == "__main__":
    run_alone(main, *SETTINGS, description=__doc__)
