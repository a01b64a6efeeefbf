"""Drafts without heads: how much faster a chat model answers by lookup in its text, and in documents.

    OMP_NUM_THREADS=1 python recipes/benchmarks/lookup.py recipes/settings/benchmarks/lookup/measured.yaml

Two sets of questions: instructions, and questions about documents (by default the reference of the Python language),
which are asked with the passages nearest to them. Same prompts, greedy, one process; the methods take turns. Measured:
recipes/multitoken.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

from dataclasses import dataclass, field

import torch
from answer_questions import Setup as AnsweringSetup
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_targets import DocumentRetriever, draft
from hf_targets.data.prompts import takes_turns
from lab.passages import ASKED, passages_of, read_texts
from lab.settings import parse_settings
from lab.speed import DecodingMethod, compare_speeds, format_speeds


@dataclass(kw_only=True)
class Setup(AnsweringSetup):
    """What answers which questions."""

    instructions: list[str] = field(metadata={"help": "Questions without documents."})
    dtype: str = field(default="bfloat16", metadata={"help": "Of the model."})
    batch_sizes: list[int] = field(default_factory=lambda: [1, 8], metadata={"help": "Questions at once."})
    ways: list[str] | None = field(default=None, metadata={"help": 'Of drafting, such as "text, auto". None: all.'})
    rounds: int = field(default=1, metadata={"help": "Timed turns of each method, after one that is not."})


def main(setup: Setup) -> None:
    """Print a table for each set of questions and batch size."""
    model = AutoModelForCausalLM.from_pretrained(setup.model, dtype=setup.dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(setup.model, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    passages = passages_of(read_texts(setup.documents), setup.passage_words)
    nearest = DocumentRetriever.lexical(passages).retrieve(setup.questions, setup.num_passages)
    shown = ["".join(f"[{n}] {passages[name]}\n\n" for n, (name, _) in enumerate(of, 1)) for of in nearest]
    asked = [text + ASKED.format(question) for text, question in zip(shown, setup.questions, strict=True)]
    documents = {"documents": passages, "tokenizer": tokenizer}
    ways = {
        "text": {"custom_generate": draft()},
        "text and documents": {"custom_generate": draft(**documents)},
        "text, auto": {"custom_generate": draft(), "draft_tokens": "auto"},
    }
    ways = {"plain": {}, **{way: ways[way] for way in setup.ways or ways}}
    print(f"{model.num_parameters():,} parameters, {setup.dtype}, {torch.get_num_threads()} threads")
    for name, prompts in {"instructions": setup.instructions, "questions about documents": asked}.items():
        texts = prompts
        if takes_turns(tokenizer):
            turns = [[{"role": "user", "content": text}] for text in prompts]
            texts = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        methods = {way: DecodingMethod(model, given) for way, given in ways.items()}
        for size in setup.batch_sizes:
            parts = [texts[start : start + size] for start in range(0, len(texts), size)]
            told = {"add_special_tokens": False, "padding": True, "return_tensors": "pt"}
            batches = [tokenizer(part, **told) for part in parts]
            speeds = compare_speeds(methods, batches, max_new_tokens=setup.new_tokens, rounds=setup.rounds)
            print(f"\n{name}, {size} at once\n\n{format_speeds(speeds)}", flush=True)


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
