"""Let systems that use the same documents continue the same prefixes: one table of their texts, time and memory.

    HF_TARGETS_DATA=data python recipes/tables/compare_systems.py recipes/settings/tables/compare_systems/smollm2.yaml

A row is a `kind` of recipes/continue_texts.py, with its options, and `only_timed: true` if it is to write the timed
texts alone; `{seed}` in its `model` stands for each seed, with which that model was trained. All rows have a key-value
cache, the same training text and the same prefixes. Prompt lookup and document lookup write the first row's texts, so
they have its figures. A row whose figures are in the output folder, of the same settings, is not written again, only
timed. Seconds are those of the process for a text, the rows one after the other for each prefix; documents are found
and phrases encoded before. A pass reads the tokens of one step or draft. Megabytes are of weights, and of a datastore
or the table of one text's phrases. Measured: recipes/baselines.md.
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
    output_dir: str = field(
        default="runs/tables/compare_systems", metadata={"help": "Folder of a datastore, the texts and the figures."}
    )

    def __post_init__(self) -> None:
        if not self.rows or set(self.only or ()) - set(self.rows):
            raise ValueError(f"rows must name systems, and only some of them, got {[*self.rows]} and {self.only}")
        if unknown := {str((row or {}).get("kind", "plain")) for row in self.rows.values()} - KINDS.keys():
            raise ValueError(f"a row's kind must be one of {', '.join(KINDS)}, got {', '.join(sorted(unknown))}")


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
                if (prepare := arguments.get("prepare")) is not None:
                    prepare([prefix], length)
                passes.clear()
                start = time.process_time()
                continued = continue_prefixes(model, [prefix], **arguments)
                seconds = time.process_time() - start
            text = str(given.tokenizer.decode(continued.tokens[0]))
            if number:
                found[name].append((seconds, len(text.encode()), len(passes)))
    for name, turns in found.items():
        seconds, num_bytes, passes = map(fmean, zip(*turns, strict=True))
        weights = sum(one.nbytes for one in systems[name].model.parameters())
        costs = {"seconds_a_text": seconds, "bytes_a_pass": num_bytes / passes}
        for one in compared.figures[name]:
            one |= {**costs, "megabytes": (weights + systems[name].held) / 1e6}


def main(setup: Setup) -> str:
    """Let all rows write with every seed, time those of the first one, and return their tables."""
    given, systems = Given(setup), {}
    compared = TextComparison(setup, given.prefixes, given.tokenizer, given.phrases_of)
    shared = {name: value for name, value in shareable(asdict(setup)).items() if name not in _FREE}
    rows = {name: setup.rows[name] or {} for name in (setup.only or setup.rows)}
    for seed in setup.seeds:
        for name, row in rows.items():
            is_seeded = "{seed}" in str(row.get("model"))
            if seed != setup.seeds[0] and not is_seeded and not setup.do_sample:
                continue  # the same model writes the same text
            options = {**row} | ({"model": row["model"].replace("{seed}", str(seed))} if is_seeded else {})
            of, kind = {**shared, "row": options.copy(), "seed": seed}, options.pop("kind", "plain")
            is_only_timed = options.pop("only_timed", False)
            system = KINDS[kind](given, **options) if is_seeded or name not in systems else systems[name]
            systems.setdefault(name, system)
            file = Path(setup.output_dir, f"{name}-seed{seed}.json")
            if file.exists() and (known := json.loads(file.read_text()))["of"] == of:
                compared.figures[name].append(known["figures"])
            elif kind == "lookup" or is_only_timed:
                first = {} if is_only_timed else compared.figures[next(iter(rows))][-1]
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
    write_results(setup.output_dir, {"settings": shareable(asdict(setup)), "figures": figures})
    return f"{results_table(figures, columns)}\n\n{differences_table(figures, columns)}\n\nResults: {setup.output_dir}"


if __name__ == "__main__":
    print(main(*parse_settings(Setup, description=__doc__)))
