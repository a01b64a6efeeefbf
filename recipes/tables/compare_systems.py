"""Let systems that use the same documents continue the same prefixes: one table of their texts, time and memory.

    HF_TARGETS_DATA=data python recipes/tables/compare_systems.py recipes/settings/tables/compare_systems/smollm2.yaml

A row is a `kind` of recipes/continue_texts.py, with its options, and `only_timed: true` if it is to write the timed
texts alone; `{seed}` in its `model` stands for each seed, with which that model was trained. All rows have a key-value
cache, the same training text and the same prefixes. Lookup writes the first row's texts, so it has its figures. Figures
in the output folder, of the same settings and weights, are not made again. Seconds are those of the process for a text,
the rows in turn for each prefix; documents are found and phrases encoded before. Megabytes are of weights, and of a
datastore or one text's phrases. Measured: recipes/baselines.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import json
import time
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from continue_texts import KINDS, Given, System
from transformers import AutoTokenizer, set_seed

from hf_targets import ChunkNeighbors, continue_prefixes
from hf_targets.backbones.weight_hash import weight_hash
from hf_targets.extras import require
from lab.continuations import ContinuationSettings, TextComparison
from lab.results import shareable, write_json, write_results
from lab.settings import parse_settings
from lab.speed import row_passes
from lab.tables import differences_table, results_table
from lab.text import BlockSettings

TEXTS = {"mauve": "MAUVE, %", "diversity": "diversity, %", "generated_ppl": "perplexity"}
COSTS = {"seconds_a_text": "CPU s", "bytes_a_pass": "bytes a pass", "megabytes": "MB"}
_FREE = ("rows", "only", "seeds", "timed_prefixes", "output_dir")  # change no text


@dataclass
class Setup(ContinuationSettings, BlockSettings):
    """Which systems continue which prefixes."""

    model: str | None = field(default=None, metadata={"help": "The base model of all rows, which scores the texts."})
    rows: dict[str, Any] = field(default_factory=dict, metadata={"help": "To each row's name its kind and options."})
    only: list[str] | None = field(default=None, metadata={"help": "Compare these rows only."})
    seeds: list[int] = field(default_factory=lambda: [0], metadata={"help": "Of sampling, and of trained rows."})
    timed_prefixes: int = field(default=6, metadata={"help": "Whose texts are timed, one at a time. 0: none."})
    output_dir: str = field(default="runs/tables/compare_systems", metadata={"help": "Of datastore, texts, figures."})

    def __post_init__(self) -> None:
        if not self.rows or set(self.only or ()) - set(self.rows):
            raise ValueError(f"rows must name systems, and only some of them, got {[*self.rows]} and {self.only}")
        if unknown := {str((row or {}).get("kind", "plain")) for row in self.rows.values()} - KINDS.keys():
            raise ValueError(f"a row's kind must be one of {', '.join(KINDS)}, got {', '.join(sorted(unknown))}")
        self.rows = {name: row or {} for name, row in self.rows.items() if name in (self.only or self.rows)}
        kinds = [row.get("kind", "plain") for row in self.rows.values()]
        if "lookup" in kinds and kinds[0] != "plain":
            raise ValueError(f"lookup has the figures of the first row, which must be plain, got {[*self.rows]}")


def cog(given: Given, *, model: str, encoder: str) -> System:
    """Copy phrases of the documents nearest to a text, as a trained model of CoG chooses; `encoder` has a tokenizer."""
    found: Any = given.load(model)
    tokenizer, reader = given.tokenizer, AutoTokenizer.from_pretrained(encoder)
    tables: dict[Any, Any] = {}  # the documents of each batch, once read

    def prepare(prefixes: Any, new_tokens: int) -> Any:
        if (key := tuple(tuple(prefix.tokens) for prefix in prefixes)) not in tables:
            near = [given.nearest(prefix.tokens) for prefix in prefixes]
            tables[key] = found.read_documents(near, tokenizer, reader)
        return {"documents": tables[key], "max_new_tokens": new_tokens}, [lambda id_: [id_]] * len(prefixes)

    return System(found, {"prepare": prepare})


def retro(given: Given, *, model: str, k: int = 2, encoder: str | None = None) -> System:
    """Read neighbours of each chunk among the documents, with a trained model of RETRO, found by a sentence encoder."""
    found = given.load(model)
    sizes = {"chunk_length": found.config.chunk_length, "length": found.config.neighbor_length}
    by: Any = encoder and require("sentence_transformers", extra="retrieval").SentenceTransformer(encoder)
    return System(found, {"retrieve": ChunkNeighbors(given.documents, given.tokenizer, encoder=by, k=k, **sizes)})


KINDS |= {"cog": cog, "retro": retro}


def add_costs(compared: TextComparison, systems: dict[str, System], given: Given, setup: Setup) -> None:
    """Let each system write the timed texts, in turns, and add what these cost to its figures."""
    found: dict[str, list[tuple[float, int, int]]] = {name: [] for name in systems}
    for number, prefix in enumerate([given.prefixes[0], *given.prefixes[: setup.timed_prefixes]]):
        for name, (model, writing, within, _) in systems.items():
            length = setup.new_tokens if number else 8  # the first turn warms up
            arguments = {"new_tokens": length, **setup.writing(given.tokenizer), **writing, "batch_size": 1}
            set_seed(number)
            with within, row_passes(model) as passes:
                arguments.get("prepare", lambda *_: None)([prefix], length)
                passes.clear()
                start = time.process_time()
                continued = continue_prefixes(model, [prefix], **arguments)
                seconds = time.process_time() - start
            if number:
                num_bytes = len(str(given.tokenizer.decode(continued.tokens[0])).encode())
                found[name].append((seconds, num_bytes, len(passes)))
    for name, turns in found.items():
        seconds, num_bytes, passes = map(fmean, zip(*turns, strict=True))
        held = systems[name].held + sum(one.nbytes for one in systems[name].model.parameters())
        for one in compared.figures[name]:
            one |= {"seconds_a_text": seconds, "bytes_a_pass": num_bytes / passes, "megabytes": held / 1e6}


def main(setup: Setup) -> str:
    """Let all rows write with every seed, time those of the first one, and return their tables."""
    given, systems, settings = Given(setup), {}, shareable(asdict(setup))
    compared = TextComparison(setup, given.prefixes, given.tokenizer, given.phrases_of)
    shared = {name: value for name, value in settings.items() if name not in _FREE}
    for seed in setup.seeds:
        for name, row in setup.rows.items():
            is_seeded = "{seed}" in str(row.get("model"))
            if seed != setup.seeds[0] and not (is_seeded or setup.do_sample):  # the same model writes the same text
                continue
            options = {**row} | ({"model": row["model"].replace("{seed}", str(seed))} if is_seeded else {})
            kind, is_only_timed = options.pop("kind", "plain"), options.pop("only_timed", False)
            system = KINDS[kind](given, **options) if is_seeded or name not in systems else systems[name]
            systems.setdefault(name, system)
            of = {**shared, "row": row, "seed": seed, "weights": [*map(weight_hash, (given.base, system.model))]}
            file = Path(setup.output_dir, f"{name}-seed{seed}.json")
            if file.exists() and (known := json.loads(file.read_text()))["of"] == of:
                compared.figures[name].append(known["figures"])
            elif kind == "lookup" or is_only_timed:
                first = {} if is_only_timed else compared.figures[next(iter(setup.rows))][-1]
                compared.figures[name].append({key: first[key] for key in TEXTS if key in first})
            else:
                with system.within:
                    columns = compared.add(name, system.model, str(setup.model), seed=seed, **system.writing)
                file.parent.mkdir(parents=True, exist_ok=True)
                write_json(file, {"of": of, "figures": columns.copy(), "texts": compared.texts[name][-1]})
                print(f"{name}, seed {seed}: {columns}", flush=True)
    if setup.timed_prefixes:
        add_costs(compared, systems, given, setup)
    figures, columns = compared.figures, {**TEXTS, **(COSTS if setup.timed_prefixes else {})}
    write_results(setup.output_dir, {"settings": settings, "figures": figures})
    return f"{results_table(figures, columns)}\n\n{differences_table(figures, columns)}\n\nResults: {setup.output_dir}"


if __name__ == "__main__":
    print(main(*parse_settings(Setup, description=__doc__)))
