"""Runs of recipes, each in a folder of its own: one model alone, or for a table every row with every seed."""

import gc
import hashlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from transformers import TrainerState

from hf_targets.training.checkpoints import newest_checkpoint
from lab.results import read_results, shareable, write_json, write_results
from lab.settings import check_earlier_runs, parse_mapping, stated_settings
from lab.text import PairSettings, TextSettings, forget_texts, text_digest

SETTINGS_NAME, LOCK_NAME, CARD_NAME = "settings.json", "run.lock", "README.md"
TEXT, ALL = "the text's digest", "the settings' digest"
_FREE = ("output_dir", "resume_from_checkpoint", "disable_tqdm", "report_to", "save_total_limit", "logging_steps")
_FREE += ("hub_token", "hub_model_id", "push_to_hub")
"""Settings that change nothing in what is computed."""
_LENGTH = (ALL, "max_steps", "num_train_epochs", "eval_steps", "save_steps")
"""What may differ in the record of a run that is resumed: how long it trains, and when it is looked at."""
_OF_ALL = {"output_dir", "plugins", "seed"}
"""Settings that a row has none of: plug-ins run code, and are named on the command line alone."""


@dataclass
class _Rows:
    rows: dict[str, Any] = field(default_factory=dict, metadata={"help": "To each row's name its own settings."})
    seeds: list[int] = field(default_factory=lambda: [0], metadata={"help": "Each row is trained with each."})
    only: list[str] | None = field(default=None, metadata={"help": "Train these rows only."})
    overwrite: bool = field(default=False, metadata={"help": "Train anew what is in output_dir."})


@dataclass(frozen=True)
class Table:
    """What a table compares: settings of all runs, to each row's name its own, and the seeds of each row."""

    settings: dict[str, Any]
    rows: dict[str, dict[str, Any]]
    seeds: list[int]
    output_dir: Path
    overwrite: bool = False


def parse_table(recipe: Any, *, description: str | None = "", arguments: Sequence[str] | None = None) -> Table:
    """Return the table that `script.py table.yaml [--name value ...]` asks for.

    The recipe is the module of a recipe for one model, with `SETTINGS` and `main(*settings) -> results`.
    """
    stated = stated_settings(_Rows, *recipe.SETTINGS, description=description, arguments=arguments)
    (own,) = parse_mapping({name: stated.pop(name) for name in vars(_Rows()) if name in stated}, _Rows)
    if unknown := set(own.only or ()) - set(own.rows):
        raise ValueError(f"only must name rows of {', '.join(own.rows)}, got {', '.join(sorted(unknown))}")
    rows = {name: own.rows[name] or {} for name in (own.only or own.rows)}
    wrong = [name for name, row in rows.items() if not isinstance(row, dict) or _OF_ALL & row.keys()]
    if wrong or not rows or not own.seeds:
        raise ValueError(
            f"there must be a seed, and rows with settings of their own, which are not {', '.join(sorted(_OF_ALL))}; "
            f"got seeds {own.seeds} and rows {wrong or own.rows}"
        )
    if "output_dir" not in stated:
        raise ValueError("a table has a folder for its runs; give --output_dir FOLDER")
    return Table(stated, rows, own.seeds, Path(stated.pop("output_dir")), own.overwrite)


def run_table(main: Callable[[Table], str], recipe: Any, *, description: str | None) -> None:
    """Print the table that `script.py table.yaml [--name value ...]` asks for, and where its runs lie."""
    table = parse_table(recipe, description=description)
    print(f"\n{main(table)}")
    if _is_first():
        runs = table.output_dir / run_folder("ROW", "N")
        print(f"\nRuns: {runs}. Next: add a row of yours to a copy of the settings file; these runs are kept.")


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
    checkpoint. All runs read the same text, once.

    Returns: To each row its results, one a seed.
    Raises:
        ValueError: Before anything is trained, if a row's name names no folder, or a folder has another run.
    """
    planned = []
    forget_texts()
    for seed in dict.fromkeys(seeds):
        for name, row in rows.items():
            if name != Path(name).name or not name.strip("."):
                raise ValueError(f"a row's name is the name of its folder, got {name!r}")
            folder = Path(output_dir, run_folder(name, seed))
            of_run = {**settings, **row, "seed": seed, "output_dir": str(folder), "resume_from_checkpoint": None}
            setup, args = parse_mapping(of_run, *recipe.SETTINGS)  # whatever is wrong with it is told first
            check_earlier_runs(of_run)
            if overwrite:
                with args.main_process_first():
                    _remove(folder)
            check_record(folder, _recorded(of_run, setup))
            planned.append((name, folder, of_run))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in rows}
    for number, (name, folder, of_run) in enumerate(planned, start=1):
        results = read_results(folder)
        if results is None:
            if _is_first():
                print(f"run {number}/{len(planned)}: {folder.name}", flush=True)
            results = run(recipe, of_run, folder)
        found[name].append(results)
    return found


def run(recipe: Any, settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Train and measure one model, from the newest whole checkpoint in its folder if there is one."""
    with owned(folder):
        if (results := read_results(folder)) is not None:  # of another process, meanwhile
            return results
        resumed = {**settings, "resume_from_checkpoint": newest_checkpoint(folder)}
        setup, args = parse_mapping(resumed, *recipe.SETTINGS)
        with _record(folder, _recorded(settings, setup)):
            results = recipe.main(setup, args)
        if _is_first():
            write_results(folder, results)
    gc.collect()  # a Trainer is in circles of references, and keeps its model
    return results


def run_alone(main: Callable[..., Any], *kinds: type, description: str | None) -> None:
    """Train one model as `script.py [settings.yaml] [--name value ...]` asks for, in a folder of its own.

    The recipe's `main` takes the `kinds`, settings first and arguments of a training last.

    Raises:
        ValueError: If the folder has checkpoints of a run that is not resumed, or what is resumed has other settings.
    """
    forget_texts()
    stated = stated_settings(*kinds, description=description)
    setup, args = parse_mapping(stated, *kinds)
    check_earlier_runs(stated)
    folder, resumed = Path(args.output_dir), args.resume_from_checkpoint
    with owned(folder):
        recorded = _recorded(stated, setup)
        if resumed is not None:
            check_record(Path(resumed).parent, recorded, _LENGTH)
        if (resumed is None or Path(resumed).parent.resolve() != folder.resolve()) and any(folder.glob("checkpoint-*")):
            raise ValueError(  # the best of them, or their mean, would be taken for this run's
                f"{folder} has checkpoints of an earlier run; go on with it (--resume_from_checkpoint true), or name "
                "another output_dir"
            )
        with _record(folder, recorded):
            main(setup, args)
        if _is_first():
            print(_next_steps(folder, Path(sys.argv[0]).resolve()), flush=True)


def _next_steps(folder: Path, script: Path) -> str:
    """Say where the results of one model lie, and what can be done with them."""
    table, card = Path("tables", script.name), folder / CARD_NAME
    steps = [f"use the model as {card} shows"] * card.is_file()
    if (script.parent / table).is_file():
        steps.append(f"compare several with {Path(script.parent.name) / table}")
    return f"Results: {folder}." + (f" Next: {', or '.join(steps)}." if steps else "")


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Keep other processes from training in a folder, for the time of a `with`; it is made if it is missing.

    Of the processes of one training the first holds a lock, which ends with the process, however that ends.
    """
    if not _is_first():
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / LOCK_NAME
    lock = FileLock(file)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        owner = (file.exists() and file.read_text(encoding="utf-8")) or "another process"
        raise ValueError(f"{folder} is in use by {owner}; wait for its end, or name another output_dir") from None
    try:
        now = datetime.now().astimezone().isoformat(" ", "seconds")
        file.write_text(f"process {os.getpid()} of {socket.gethostname()} since {now}", encoding="utf-8")
        yield
    finally:
        file.unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):
            folder.rmdir()  # if it is empty


@contextmanager
def _record(folder: Path, recorded: Mapping[str, Any]) -> Iterator[None]:
    """Keep what a run is of in its folder; a run that fails before it writes anything leaves nothing."""
    if not _is_first():
        yield
        return
    write_json(folder / SETTINGS_NAME, recorded)
    try:
        yield
    except BaseException:
        if {path.name for path in folder.iterdir()} <= {SETTINGS_NAME, LOCK_NAME}:
            (folder / SETTINGS_NAME).unlink()
        raise


def run_folder(name: str, seed: int | str) -> str:
    """Return the name of the folder of a run."""
    return f"{name}-seed{seed}"


def histories(output_dir: str | Path, rows: Sequence[str], seeds: Sequence[int]) -> dict[str, list[list[dict]]]:
    """Return Trainer's logs of all runs that kept theirs (`save_state`), as `plot_learning_curves` takes them."""
    folders = {name: [Path(output_dir, run_folder(name, seed)) for seed in seeds] for name in rows}
    state = TrainerState.load_from_json
    return {name: [state(str(one / "trainer_state.json")).log_history for one in of] for name, of in folders.items()}


def _is_first() -> bool:
    """Return whether this is the process that writes the files of a training."""
    return not int(os.environ.get("RANK", "0"))


def _recorded(settings: Mapping[str, Any], setup: Any) -> dict[str, Any]:
    """Return what a run is of: its settings, as others may read them, and a digest of its text."""
    kept = {name: value for name, value in settings.items() if name not in _FREE}
    written = json.dumps({**kept, "num_processes": int(os.environ.get("WORLD_SIZE", "1"))}, default=str, sort_keys=True)
    record = {**shareable(json.loads(written)), ALL: hashlib.sha256(written.encode()).hexdigest()[:16]}
    if isinstance(setup, TextSettings | PairSettings):
        record[TEXT] = text_digest(setup.load())
    return record


def check_record(folder: Path, new: Mapping[str, Any], leaving_out: Sequence[str] = ()) -> None:
    """Compare what a run is of with the record in a folder, if it has one, but for some names."""
    file = folder / SETTINGS_NAME
    if not file.is_file():
        return
    old = json.loads(file.read_text(encoding="utf-8"))
    if others := [name for name in {**old, **new} if name not in leaving_out and old.get(name) != new.get(name)]:
        others = [name for name in others if name != ALL] or others
        told = ", ".join(f"{name} was {old.get(name)!r} and is {new.get(name)!r}" for name in others)
        raise ValueError(
            f"{folder} has another run ({told}); name another output_dir, or train anew (a table: --overwrite true)"
        )


def _remove(folder: Path) -> None:
    """Remove an older run; a folder that is none is told and left alone."""
    if not folder.exists() or not _is_first():
        return
    if any(folder.iterdir()) and not (folder / SETTINGS_NAME).is_file():
        raise ValueError(f"{folder} has no {SETTINGS_NAME}, so it is no run to overwrite; name another output_dir")
    with owned(folder):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOCK_NAME:
                path.unlink()
