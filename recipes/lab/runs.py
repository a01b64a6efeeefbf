"""Runs for a table: a recipe's model is trained for every row with every seed, each in a folder of its own."""

import gc
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from hf_targets.training.checkpoints import newest_checkpoint
from lab.results import read_results, write_json, write_results
from lab.settings import parse_mapping, stated_settings

SETTINGS_NAME = "settings.json"
_FREE = ("output_dir", "resume_from_checkpoint", "disable_tqdm", "report_to", "save_total_limit", "logging_steps")
"""Settings that change nothing in what is computed."""


@dataclass
class _Rows:
    rows: dict[str, Any] = field(default_factory=dict, metadata={"help": "To each row's name its own settings."})
    seeds: list[int] = field(default_factory=lambda: [0], metadata={"help": "Each row is trained with each."})
    only: list[str] | None = field(default=None, metadata={"help": "Train these rows only."})
    overwrite: bool = field(default=False, metadata={"help": "Train anew what is in output_dir."})


@dataclass(frozen=True)
class Table:
    """What a table compares.

    Attributes:
        settings: Of all runs, by name.
        rows: To each row's name the settings that are its own.
        seeds: Each row is trained with each of them.
        output_dir: Has the folders of the runs.
        overwrite: Whether older runs are removed first.
    """

    settings: dict[str, Any]
    rows: dict[str, dict[str, Any]]
    seeds: list[int]
    output_dir: Path
    overwrite: bool = False


def parse_table(recipe: Any, *, description: str | None = "", arguments: Sequence[str] | None = None) -> Table:
    """Return the table that `script.py table.yaml [--name value ...]` asks for.

    Args:
        recipe: The module of a recipe for one model, with `SETTINGS` and `main(*settings) -> results`.
        description, arguments: As for `parse_settings`.
    Raises:
        ValueError: If `only` names a row that the table has not.
    """
    stated = stated_settings(_Rows, *recipe.SETTINGS, description=description, arguments=arguments)
    (own,) = parse_mapping({name: stated.pop(name) for name in vars(_Rows()) if name in stated}, _Rows)
    if unknown := set(own.only or ()) - set(own.rows):
        raise ValueError(f"only must name rows of {', '.join(own.rows)}, got {', '.join(sorted(unknown))}")
    rows = {name: own.rows[name] or {} for name in (own.only or own.rows)}
    return Table(stated, rows, own.seeds, Path(stated.pop("output_dir")), own.overwrite)


def compare(
    recipe: Any,
    settings: Mapping[str, Any],
    rows: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    output_dir: str | Path,
    *,
    overwrite: bool = False,
) -> dict[str, list[dict[str, Any]]]:
    """Train every row with every seed in `<output_dir>/<row>-seed<seed>`, all rows of the first seed first.

    A run whose `results.json` is there is not repeated; one that was broken off goes on from its newest whole
    checkpoint.

    Returns: To each row its results, one a seed.
    Raises:
        ValueError: Before anything is trained, if a row's name is no name of a folder, or a folder has a run of other
            settings.
    """
    planned = []
    for seed in dict.fromkeys(seeds):
        for name, row in rows.items():
            if name != Path(name).name or not name.strip("."):
                raise ValueError(f"a row's name is the name of its folder, got {name!r}")
            folder = Path(output_dir, run_folder(name, seed))
            of_run = {**settings, **row, "seed": seed, "output_dir": str(folder)}
            args = parse_mapping(of_run, *recipe.SETTINGS)[-1]  # whatever is wrong with it is told first
            if overwrite:
                _remove(folder, args)
            _check_settings(folder, of_run)
            planned.append((name, folder, of_run))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in rows}
    for number, (name, folder, of_run) in enumerate(planned, start=1):
        results = read_results(folder)
        if results is None:
            if not int(os.environ.get("RANK", "0")):
                print(f"run {number}/{len(planned)}: {folder.name}", flush=True)
            results = run(recipe, of_run, folder)
        found[name].append(results)
    return found


def run(recipe: Any, settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Train and measure one model, from the newest whole checkpoint in its folder if there is one."""
    setup, args = parse_mapping({**settings, "resume_from_checkpoint": newest_checkpoint(folder)}, *recipe.SETTINGS)
    if not args.process_index:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / SETTINGS_NAME, _recorded(settings))
    results = recipe.main(setup, args)
    if not args.process_index:
        write_results(folder, results)
    gc.collect()  # a Trainer is in circles of references, and keeps its model
    return results


def run_folder(name: str, seed: int | str) -> str:
    """Return the name of the folder of a run.

    >>> run_folder("plain", 3)
    'plain-seed3'
    """
    return f"{name}-seed{seed}"


def histories(output_dir: str | Path, rows: Sequence[str], seeds: Sequence[int]) -> dict[str, list[list[dict]]]:
    """Return Trainer's logs of all runs that kept theirs (`save_state`), as `plot_learning_curves` takes them."""
    files = {name: [Path(output_dir, run_folder(name, seed), "trainer_state.json") for seed in seeds] for name in rows}
    return {
        name: [json.loads(file.read_text(encoding="utf-8"))["log_history"] for file in own]
        for name, own in files.items()
    }


def _recorded(settings: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in settings.items() if name not in _FREE}
    return json.loads(json.dumps({**kept, "num_processes": int(os.environ.get("WORLD_SIZE", "1"))}, default=str))


def _check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    file = folder / SETTINGS_NAME
    old = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    new = _recorded(settings)
    if old is not None and (others := [name for name in {**old, **new} if old.get(name) != new.get(name)]):
        told = ", ".join(f"{name} was {old.get(name)!r} and is {new.get(name)!r}" for name in others)
        raise ValueError(f"{folder} has a run of other settings ({told}); name another output_dir, or --overwrite true")


def _remove(folder: Path, args: TrainingArguments) -> None:
    """Remove an older run; a folder that is none is told and left alone."""
    if folder.exists() and any(folder.iterdir()) and not (folder / SETTINGS_NAME).is_file():
        raise ValueError(f"{folder} has no {SETTINGS_NAME}, so it is no run to overwrite; name another output_dir")
    with args.main_process_first():
        if not args.process_index:
            shutil.rmtree(folder, ignore_errors=True)
