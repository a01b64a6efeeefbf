"""Compare all targets on the same text, with the same backbone, budget and seeds: one table of figures and texts.

    python recipes/tables/leaderboard.py recipes/settings/tables/leaderboard/cpu.yaml

Offline, without data. Each run leaves a file of its figures in `output_dir`; the command trains those that are missing,
and writes the table anew. A run that fails keeps its place in the table, with the reason, and is tried again next time.
A row names one of the kinds of recipes/lab/target_rows.py and its own settings; `{base}` in them is the folder of the
first row's model of the same seed. An installed package adds rows by the entry points `hf_targets.leaderboard`.
Measured: recipes/leaderboard.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import json
import time
import traceback
from dataclasses import asdict, dataclass, field, fields
from datetime import date
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

from lab.continuations import ContinuationSettings
from lab.results import shareable, write_json
from lab.runs import compare, run_folder
from lab.settings import parse_settings
from lab.tables import format_difference, format_mean, markdown_table
from lab.target_rows import KINDS, Given
from lab.text import BlockSettings

PLUG_INS = {one.name: one for one in entry_points(group="hf_targets.leaderboard")}
BEGIN, END = "<!-- begin: recipes/tables/leaderboard.py writes from here -->", "<!-- end -->"
EXTRA = ("perplexity_ensemble", "best_path_perplexity", "perplexity_temperature")
MEASURED = {"diversity": 1, "generated_ppl": 0, "cpu_seconds": 0, "seconds_a_text": 2}
HEADS = ("row", "perplexity", "against the first row", "with its extra", "diversity, %", "perplexity of its texts")
HEADS += ("CPU s of a run", "CPU s of a text")
_FREE = ("rows", "seeds", "output_dir", "machine", "page")  # change no figure


@dataclass
class Setup(ContinuationSettings, BlockSettings):
    """Which rows are compared, on which text."""

    rows: dict[str, Any] = field(default_factory=dict, metadata={"help": "To each row's name its kind and settings."})
    seeds: list[int] = field(default_factory=lambda: [0], metadata={"help": "Each row is trained with each."})
    training: dict[str, Any] = field(default_factory=dict, metadata={"help": "Settings of all rows that know them."})
    judge: str | None = field(
        default=None, metadata={"help": "Folder of the model that scores texts. None, or not there: the first row's."}
    )
    timed_prefixes: int = field(default=2, metadata={"help": "Whose texts are timed, one at a time."})
    machine: str = field(default="CPU", metadata={"help": "What the page says of the machine."})
    page: str | None = field(default=None, metadata={"help": "Page whose table is written anew. None: no page."})
    output_dir: str = field(default="runs/tables/leaderboard", metadata={"help": "Folder of all runs."})

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = {name: row or {} for name, row in self.rows.items()}
        taken = {row.get("kind") for row in rows.values()}
        self.rows = {**rows, **{name: {"kind": name} for name in PLUG_INS if name not in taken}}
        if unknown := {str(row.get("kind")) for row in self.rows.values()} - {*KINDS, *PLUG_INS}:
            raise ValueError(f"a row's kind must be one of {', '.join({**KINDS, **PLUG_INS})}, got {sorted(unknown)}")


def train(name: str, seed: int, setup: Setup, base: Path) -> tuple[dict[str, Any], Any]:
    """Return the results of a run, which is trained if it was not yet, and its kind."""
    row = json.loads(json.dumps(setup.rows[name]).replace("{base}", str(base)))
    kind: Any = KINDS[named] if (named := row.pop("kind")) in KINDS else PLUG_INS[named].load()

    def timed(*given: Any) -> dict[str, Any]:
        start = time.process_time()
        results = kind.main(*given)
        return {**results, "cpu_seconds": time.process_time() - start + results.get("seconds_before", 0.0)}

    known = {one.name for settings in kind.SETTINGS for one in fields(settings)}
    stated = {one.name: getattr(setup, one.name) for one in fields(BlockSettings)} | setup.training
    shared = {key: value for key, value in stated.items() if key in known}
    recipe = SimpleNamespace(SETTINGS=kind.SETTINGS, main=timed)
    return compare(recipe, {**shared, **row}, {name: {}}, [seed], setup.output_dir)[name][0], kind


def table(records: dict[str, list[dict[str, Any]]]) -> str:
    """Return the table of all rows, and why runs failed; a row of which some failed has the mean of the others."""
    first: Any = [one["figures"]["perplexity"] for one in next(iter(records.values())) if "figures" in one]
    lines, reasons = [], []
    for name, runs in records.items():
        reasons += [f"- {name}, seed {one['seed']}: {one['failed']}" for one in runs if "failed" in one]
        if not (found := [one["figures"] for one in runs if "figures" in one]):
            lines.append([name, "failed", *[""] * (len(HEADS) - 2)])
            continue
        values = [one.get("perplexity", one.get("perplexity_bound")) for one in found]
        extra = [next((one[key] for key in EXTRA if key in one), None) for one in found]
        difference = "" if values == first or not first else format_difference(values, first)
        at_most = "at most " if "perplexity_bound" in found[0] else ""
        cells = [at_most + format_mean(values, digits=1), difference and at_most + difference]
        cells += [format_mean(extra, digits=1)]
        cells += [format_mean([one.get(key) for one in found], digits=digits) for key, digits in MEASURED.items()]
        lines.append([name if len(found) == len(runs) else f"{name} ({len(found)} of {len(runs)} seeds)", *cells])
    return "\n".join([markdown_table(HEADS, lines), *(["", "Failed:", "", *reasons] if reasons else [])])


def main(setup: Setup) -> str:
    """Train and measure what is missing, and return the table; the page gets it too."""
    texts, records = setup.load(), {name: [] for name in setup.rows}
    tokenizer = setup.tokenizer(None, texts)
    given = Given(setup, tokenizer, setup.phrases_of_documents(texts["train"]["text"], tokenizer))
    bases = {seed: Path(setup.output_dir, run_folder(next(iter(setup.rows)), seed)) for seed in setup.seeds}
    judge = setup.judge if setup.judge and Path(setup.judge).is_dir() else str(bases[setup.seeds[0]])
    shared = {key: value for key, value in asdict(setup).items() if key not in _FREE} | {"judge": Path(judge).name}
    for seed in setup.seeds:
        for name, row in setup.rows.items():
            of = json.loads(json.dumps(shareable({**shared, "row": row})))
            record = {"of": of, "seed": seed, "date": date.today().isoformat()}
            file = Path(setup.output_dir, f"{run_folder(name, seed)}.json")
            known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
            if "figures" in known and known["of"] == of:
                record = known
            else:
                try:
                    results, kind = train(name, seed, setup, bases[seed])
                    system = kind.system(Path(setup.output_dir, run_folder(name, seed)), given)
                    record["figures"] = {**results, **given.measure(system, seed, judge)}
                except Exception as error:  # the other rows go on
                    traceback.print_exc()
                    record["failed"] = shareable(f"{type(error).__name__}: {error}".splitlines()[0])
                file.parent.mkdir(parents=True, exist_ok=True)
                write_json(file, record)
            records[name].append(record)
    found = table(records)
    if setup.page is not None:
        page = Path(setup.page)
        before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        newest = max(one["date"] for runs in records.values() for one in runs)
        told = f"{setup.machine}, {newest}; seeds {', '.join(map(str, setup.seeds))}; judge: {Path(judge).name}."
        page.write_text(f"{before}{BEGIN}\n{found}\n\n{told}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return found


if __name__ == "__main__":
    (setup,) = parse_settings(Setup, description=__doc__)
    print(
        main(setup),
        f"Runs: {setup.output_dir}. Next: add a row of yours to the settings; these runs are kept.",
        sep="\n\n",
    )
