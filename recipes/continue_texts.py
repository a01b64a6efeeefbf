"""Let a causal model continue texts with the words of other texts, in one of several ways, and print what it writes.

    HF_TARGETS_DATA=data python recipes/continue_texts.py recipes/settings/continue_texts/smollm2.yaml --kind lookup

`--kind`: the model alone, prompt lookup or document lookup (the same text in fewer passes), kNN-LM, multiword tokens,
phrases. `--options` are the arguments of that kind's function, below. Several ways: recipes/tables/compare_systems.py.
"""

import lab.start  # noqa: F401

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from transformers import AutoTokenizer, set_seed

from hf_targets import (
    DynamicVocabForCausalLM,
    KnnDatastore,
    KnnProcessor,
    continue_prefixes,
    draft,
    transfer_vocabulary,
)
from hf_targets.phrases.decoding.token_scores import ScoredByTokens
from lab.continuations import ContinuationSettings, load_model, with_phrases
from lab.settings import parse_settings
from lab.text import BlockSettings


@dataclass
class Setup(ContinuationSettings, BlockSettings):
    """Which model continues which texts, and how."""

    model: str | None = field(default=None, metadata={"help": "Causal model, with its tokenizer."})
    kind: Literal["plain", "lookup", "knn", "multiword", "phrases"] = field(default="plain", metadata={"help": "How."})
    options: dict[str, Any] = field(default_factory=dict, metadata={"help": "Arguments of that kind's function."})
    seed: int = field(default=0, metadata={"help": "Of sampling."})
    output_dir: str = field(default="runs/continue_texts", metadata={"help": "Folder of a datastore."})


class System(NamedTuple):
    """A way to write: arguments of `continue_prefixes`, what must be open meanwhile, and bytes beside the weights."""

    model: Any
    writing: dict[str, Any]
    within: AbstractContextManager[Any] = nullcontext()
    held: float = 0


class Given:
    """What all ways share: settings, the base model and its tokenizer, the text and its documents."""

    def __init__(self, setup: Any) -> None:
        self.setup, self.texts = setup, setup.load()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(setup.model)
        self.load = partial(load_model, dtype=setup.dtype)
        self.base: Any = self.load(setup.model)
        self.prefixes = setup.prefixes(self.texts, self.tokenizer)
        self.documents, self.retriever = setup.documents(self.texts["train"]["text"])
        self.phrases_of = setup.phrases_of(self.documents, self.retriever, self.tokenizer)

    def nearest(self, tokens: list[int]) -> dict[str, str]:
        """Return the documents nearest to a text by their names, the nearest first."""
        [found] = self.retriever.retrieve([str(self.tokenizer.decode(tokens))], self.setup.num_documents)
        return {name: self.documents[name] for name, _ in found}


def lookup(given: Given, *, documents: bool = False, **writing: Any) -> System:
    """Draft what followed the last tokens before: in the text, or in the documents nearest to it as well."""

    def prepare(prefixes: Any, new_tokens: int) -> Any:
        found = given.nearest(prefixes[0].tokens) if documents else None
        drafts = draft(documents=found, tokenizer=given.tokenizer)
        return {"max_new_tokens": new_tokens, "custom_generate": drafts}, [lambda id_: [id_]] * len(prefixes)

    return System(given.base, {"prepare": prepare, **({"batch_size": 1} if documents else {}), **writing})


def knn(given: Given, *, temperatures: Any = (30, 60, 100), weights: Any = (0.1, 0.2, 0.3), **rest: Any) -> System:
    """Mix in words that followed near states of the training text; lambda is the best on validation text."""
    k, blocks = rest.pop("k", 1024), given.setup.blocks(given.texts, given.tokenizer)
    made = KnnDatastore.build(given.base, blocks["train"], folder := Path(given.setup.output_dir, "store"), **rest)
    grid: Any = {"temperatures": temperatures, "weights": weights}
    found = KnnProcessor(made, given.base, k=k).tuned(blocks["validation"], **grid)
    print(f"kNN-LM: {len(made)} keys, temperature {found.temperature:g}, lambda {found.weight:g}", flush=True)
    held = sum(file.stat().st_size for file in folder.iterdir())
    return System(given.base, {"logits_processor": [found]}, found, held)


def multiword(given: Given, *, model: str | None = None, **transfer: Any) -> System:
    """Write with multiword tokens: a trained model, or the base after `transfer_vocabulary` with these arguments."""
    if given.setup.instruction is not None:
        raise ValueError("multiword tokens continue texts alone; leave out instruction")
    old, found = given.tokenizer, given.load(model or given.setup.model)
    new: Any = None if model is None else AutoTokenizer.from_pretrained(model)
    if new is None:
        found, new = transfer_vocabulary(found, old, given.texts["train"]["text"], **transfer)
    new.pad_token, written = new.pad_token or new.eos_token, [new.decode([id_]) for id_ in range(len(old), len(new))]
    pieces = [[id_] for id_ in range(len(old))] + old(written, add_special_tokens=False)["input_ids"]
    lengths = torch.tensor(list(map(len, pieces)), device=found.device)

    def prepare(prefixes: Any, new_tokens: int) -> Any:
        texts = [old.decode(prefix.tokens) for prefix in prefixes]
        asked: Any = {"padding": True, "padding_side": "left", "return_token_type_ids": False, "return_tensors": "pt"}
        read = new(texts, add_special_tokens=False, **asked).to(found.device)
        ends = [lambda ids, *_, **__: lengths[ids[:, read["input_ids"].shape[1] :]].sum(dim=1) >= new_tokens]
        return {**read, "max_new_tokens": new_tokens, "stopping_criteria": ends}, [pieces.__getitem__] * len(texts)

    return System(found, {"prepare": prepare})


def phrases(given: Given, *, scored_by_tokens: bool = False, model: str | None = None, **config: Any) -> System:
    """Write with phrases of the documents nearest to a text: a trained model, or the base with an untrained encoder."""
    found: Any = DynamicVocabForCausalLM.from_base(given.base, **config) if model is None else given.load(model)
    of_phrases = with_phrases(found.eval(), given.phrases_of, given.setup)

    def prepare(prefixes: Any, new_tokens: int) -> Any:
        arguments, expansions = of_phrases(prefixes, new_tokens)
        if scored_by_tokens:  # by the base: nothing is trained
            arguments["logits_processor"] = [ScoredByTokens(given.base, arguments["phrases"].vocabularies[0])]
        return arguments, expansions

    table = of_phrases(given.prefixes[:1], 1)[0]["phrases"]  # of one text
    writing = {"prepare": prepare, **({"batch_size": 1} if scored_by_tokens else {})}
    return System(found, writing, held=table.inputs.nbytes + table.outputs.nbytes)


KINDS: Any = {kind.__name__: kind for kind in (lookup, knn, multiword, phrases)}
KINDS["plain"] = lambda given, model=None: System(given.load(model) if model else given.base, {})


def main(setup: Setup) -> None:
    """Write the texts and print them."""
    set_seed(setup.seed)
    given = Given(setup)
    model, writing, within, _ = KINDS[setup.kind](given, **setup.options)
    writing = {"new_tokens": setup.new_tokens, "batch_size": setup.batch_size, **writing}
    with within:
        found = continue_prefixes(model, given.prefixes, **setup.writing(given.tokenizer), **writing)
    for prefix, tokens in zip(given.prefixes, found.tokens, strict=True):
        print(f"{given.tokenizer.decode(prefix.tokens)} [...] {given.tokenizer.decode(tokens)}\n")
    print("Next: measure such texts, of several kinds, with recipes/tables/compare_systems.py.")


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
