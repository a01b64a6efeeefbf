"""Multiword tokens with fast vocabulary transfer (FVT): what they cost a trained model, and what training gives back.

    HF_TARGETS_DATA=data python recipes/tables/multiword_tokens.py recipes/settings/tables/multiword_tokens/smollm2.yaml

The first table is before training: the loss of a test text with the new tokens and with the old ones alone, by FVT and
by random rows. The second one is after LoRA, by Transformers' own Trainer, with the last row's vocabulary; its models
stay in the output folder, and `compare_systems.py` lets them write. Measured: recipes/baselines.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import re
import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, set_seed

from hf_targets import pack_blocks, transfer_vocabulary
from hf_targets.extras import require
from lab.results import write_results
from lab.runs import run_folder
from lab.settings import parse_settings
from lab.tables import markdown_table
from lab.text import BlockSettings

OLD, FVT, RANDOM = "old", "fvt", "random"


@dataclass
class Setup(BlockSettings):
    """The model, its texts, and the new vocabularies."""

    model_name_or_path: str | None = field(default=None, metadata={"help": "Causal model, with its tokenizer."})
    dtype: str = field(default="bfloat16", metadata={"help": "Of the model."})
    rows: dict[str, Any] = field(
        default_factory=lambda: {"10,000 bigrams": {"num_tokens": 10_000}},
        metadata={"help": "To each row's name the arguments of `transfer_vocabulary`; the last one is trained."},
    )
    piece_words: int = field(default=500, metadata={"help": "Words of the test text that are read at once."})
    trained: list[str] = field(
        default_factory=lambda: [OLD, FVT, RANDOM], metadata={"help": f"Of {OLD}, {FVT}, {RANDOM}. Empty: none."}
    )
    lora_rank: int = field(default=8, metadata={"help": "Of the adapters."})
    lora_alpha: int = field(default=32, metadata={"help": "The scale of LoRA is this over the rank."})

    def __post_init__(self) -> None:
        if self.streaming:
            raise ValueError("n-grams are counted in a whole text; leave out streaming")


def pieces_of(setup: Setup, rows: list[str]) -> list[str]:
    """Return a text in pieces of so many words, each after a space."""
    words = re.findall(r"\S+\s*", "".join(rows).strip())
    starts = range(0, len(words), setup.piece_words)
    return [" " + "".join(words[start : start + setup.piece_words]) for start in starts]


@torch.no_grad()
def loss_of(model: Any, tokenizer: Any, pieces: list[str]) -> tuple[float, int]:
    """Return the loss of a text in nats a word, and its number of tokens."""
    model.eval()
    loss, count = 0.0, 0
    for piece in pieces:
        ids = tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]
        begin = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        row = torch.tensor([[begin, *ids]], device=model.device)
        logits = model(input_ids=row).logits[0, :-1].float()
        loss += torch.nn.functional.cross_entropy(logits, row[0, 1:], reduction="sum").item()
        count += len(ids)
    return loss / sum(len(piece.split()) for piece in pieces), count


def train(model: Any, tokenizer: Any, first: int, setup: Setup, args: TrainingArguments, text: Any) -> Any:
    """Return a model after LoRA, whose rows from the one on that is given are trained, too."""
    peft: Any = require("peft", extra="lora")
    new = list(range(first, len(tokenizer)))
    given: Any = {"trainable_token_indices": new} if new else {}
    shape: Any = {"r": setup.lora_rank, "lora_alpha": setup.lora_alpha, "target_modules": "all-linear"}
    set_seed(args.seed)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **shape, **given))
    Trainer(adapted, args, train_dataset=pack_blocks(text, tokenizer, setup.block_size)).train()
    return adapted.merge_and_unload()


def main(setup: Setup, args: TrainingArguments) -> str:
    """Measure each vocabulary before training, train the last one, and return both tables."""
    texts, name = setup.load(), str(setup.model_name_or_path)
    old: Any = AutoTokenizer.from_pretrained(name)
    pieces = pieces_of(setup, texts["test"]["text"])

    def load() -> Any:
        return AutoModelForCausalLM.from_pretrained(name, dtype=setup.dtype)

    def made(way: str, **given: Any) -> tuple[Any, Any]:
        if way == OLD:
            return load(), old
        model, tokenizer = transfer_vocabulary(load(), old, texts["train"]["text"], **given)
        if way == RANDOM:
            torch.manual_seed(args.seed)
            torch.nn.init.normal_(model.get_input_embeddings().weight.data[len(old) :], std=0.02)
            if (rows := model.get_output_embeddings().weight) is not model.get_input_embeddings().weight:
                torch.nn.init.normal_(rows.data[len(old) :], std=0.02)
        return model, tokenizer

    own, count = loss_of(load(), old, pieces)
    lines, before, results = [["none", "1", *2 * [f"{own:.2f}", ""]]], {OLD: own}, {OLD: {"loss": own, "tokens": count}}
    for row, given in setup.rows.items():
        found: dict[str, Any] = {}
        for way in (FVT, RANDOM):
            model, tokenizer = made(way, **given)
            before[way], found["tokens"] = loss_of(model, tokenizer, pieces)
            found |= {way: before[way], f"{way}, as before": loss_of(model, old, pieces)[0]}
        share = found["tokens"] / count
        losses = [f"{found[key]:.2f}" for key in (FVT, RANDOM, f"{FVT}, as before", f"{RANDOM}, as before")]
        lines.append([row, f"{share:.3f}", *losses])
        results[row] = found | {"new / old": share}
        print(f"{row}: {found}", flush=True)
    columns = ["new tokens", "new / old", "FVT, joined", "random, joined", "FVT, as before", "random, as before"]
    tables, trained = [markdown_table(columns, lines)], []
    for way in setup.trained:
        model, tokenizer = made(way, **list(setup.rows.values())[-1])
        folder = Path(str(args.output_dir), run_folder(way, args.seed))
        start = time.process_time()
        model = train(model, tokenizer, len(old), setup, replace(args, output_dir=str(folder)), texts["train"])
        seconds = time.process_time() - start
        after, tokens = loss_of(model, tokenizer, pieces)
        for part in (model, tokenizer):
            part.save_pretrained(folder)
        trained.append([way, f"{before[way]:.2f}", f"{after:.2f}", f"{seconds:.0f}"])
        results[f"{way}, trained"] = {"before": before[way], "after": after, "tokens": tokens, "CPU seconds": seconds}
        print(f"{way}: {results[f'{way}, trained']}", flush=True)
    if trained:
        tables.append(markdown_table(["model", "before", "after", "CPU seconds"], trained))
    write_results(str(args.output_dir), {"settings": vars(setup), "steps": args.max_steps, "results": results})
    return "\n\n".join([*tables, f"Models and results: {args.output_dir}"])


if __name__ == "__main__":
    print(main(*parse_settings(Setup, TrainingArguments, description=__doc__)))
