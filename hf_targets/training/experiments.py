"""An experiment, all runs of one call of a recipe: its output folder, its settings, what of an older one is removed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from hf_targets.training.outputs import (
    check_run_folder,
    check_run_names,
    find_output,
    remove_output,
    run_patterns,
    write_json,
)
from hf_targets.training.seeds import run_folder

RECORD_NAME = "run.json"
"""The file of an output folder that records the settings of its experiment, and what the experiment writes."""

_FREE = {
    *("output_dir", "overwrite_output_dir", "resume_from_checkpoint", "restore_callback_states_from_checkpoint"),
    *("save_total_limit", "disable_tqdm", "report_to", "run_name", "project", "push_to_hub", "license", "language"),
    *("local_rank", "ddp_timeout", "dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor"),
    *("dataloader_persistent_workers", "do_train", "do_eval", "do_predict", "debug", "skip_memory_metrics"),
    *("per_device_eval_batch_size", "eval_accumulation_steps", "torch_empty_cache_steps"),
}
"""Settings that change nothing in what is computed."""

_FREE_KINDS = ("trackio_", "logging_", "log_", "hub_")
"""How the names of more of them begin, among the arguments of a training."""


class Experiment:
    """All runs of one call of a recipe, whose output folder is looked at when this is made, and touched by `begin`.

    An experiment writes only what it records in `run.json` before it trains anything, as names and patterns, and only
    what they match is ever removed. So a folder may have other things in it, and a model must not have the name of one
    of them.

    Attributes:
        folder: The output folder.
        resume: Whether to go on where an older experiment of the same settings was broken off, if there is one.

    Args:
        setup: The recipe's own settings, a dataclass with `overwrite_output_dir`.
        args: Their `resume_from_checkpoint` is "true" or "false", as the newest whole checkpoint is found; "true" goes
            over `overwrite_output_dir`.
        outputs: Names or patterns of what the experiment writes into the folder itself.
        models: Names of the models that it trains in subfolders; None: it trains none.
        seeds: Each model is trained with each of them; the subfolders are those of `run_folder`.
        setting: The setting that those names come from.
    Raises:
        ValueError: If the names of models cannot be those of folders; the output folder is a file, or has something in
            it and neither resuming nor overwriting is asked for; something is in the way that no experiment has
            recorded; a setting names something that would be removed; or an experiment of other settings is to be
            resumed.
    """

    def __init__(
        self,
        setup: Any,
        args: TrainingArguments,
        *,
        outputs: Sequence[str],
        models: Sequence[str] | None = None,
        seeds: Sequence[int] = (),
        setting: str = "rows",
    ) -> None:
        wanted = {"none": False, "false": False, "true": True}.get(str(args.resume_from_checkpoint).lower())
        if wanted is None:
            raise ValueError(
                "resume_from_checkpoint must be true or false, as the newest whole checkpoint is found, got "
                f"{args.resume_from_checkpoint!r}"
            )
        if models is not None:
            check_run_names(models, reserved=[RECORD_NAME, *outputs], setting=setting)
        names = list(models or ())
        folders = [run_folder(name, seed) for name in names for seed in seeds] if seeds else names
        self.resume = wanted
        self.folder = Path(args.output_dir or ".")
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"output_dir {self.folder} is a file; name a folder")
        self._args = args
        self._record = {"settings": _settings(setup, args), "rows": folders, "outputs": list(outputs)}
        self._defaults = _defaults(setup)
        self._older: dict[str, Any] | None = None
        self._has_begun = False
        if args.should_save:  # one process looks; the others may be late, and find what it has begun to write
            self._older = _read_record(self.folder)
            self._check_folder(may_be_used=self.resume or setup.overwrite_output_dir)

    def _check_folder(self, *, may_be_used: bool) -> None:
        if self.folder.exists() and any(self.folder.iterdir()) and not may_be_used:
            raise ValueError(
                f"output_dir {self.folder} is not empty; name another, or pass --overwrite_output_dir true to replace "
                "the experiment in it, or --resume_from_checkpoint true to go on"
            )
        for name in self._record["rows"]:
            check_run_folder(self.folder / name)
        own = [] if self._older is None else find_output(self.folder, _patterns(self._older))
        if foreign := [path for path in find_output(self.folder, _patterns(self._record)) if path not in own]:
            known = f"which the experiment recorded in its {RECORD_NAME} has not written"
            if self._older is None:
                known = f"and the folder has no {RECORD_NAME}, which tells what an experiment has written"
            raise ValueError(
                f"this experiment would write over {', '.join(str(path) for path in foreign)}, {known}; name another "
                "output_dir, or move them away"
            )
        if self.resume and self._older is not None:
            _check_settings(self.folder, self._older["settings"], self._record["settings"], self._defaults)
        if not self.resume:
            self._check_not_needed(own)

    def _check_not_needed(self, removed: Sequence[Path]) -> None:
        """Make sure that no setting names a file or folder, such as the model to start from, that is removed."""
        gone = {path.resolve() for path in removed}
        parts = gone | {
            parent for path in gone for parent in path.parents if parent.is_relative_to(self.folder.resolve())
        }
        settings = self._record["settings"]["recipe"]
        for name, value in settings.items():
            for text in _texts_in(value, settings.get("seeds") or []):
                path = _resolved(text)
                if path in parts or gone & set(path.parents):
                    raise ValueError(
                        f"{name} {text} is in the output of the experiment that this one replaces; name another "
                        "output_dir"
                    )

    def folder_of(self, name: str, seed: int) -> Path:
        """Return the folder of a run: its checkpoints, and its model if the recipe leaves it."""
        return self.folder / run_folder(name, seed)

    def begin(self) -> None:
        """Remove the output of an older experiment, unless it is resumed, and record this one.

        All processes call this; a second call does nothing. If it is broken off, the experiment can be resumed, and the
        removal is finished first.
        """
        if self._has_begun:
            return
        self._has_begun = True
        with self._args.main_process_first(local=self._args.save_on_each_node):
            if not self._args.should_save:
                return
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._older is not None and (not self.resume or self._older.get("is_being_emptied")):
                both = {key: [*self._record[key], *self._older[key]] for key in ("rows", "outputs")}
                write_json(self.folder / RECORD_NAME, {**self._record, **both, "is_being_emptied": True})
                remove_output(self.folder, _patterns(self._older))
            write_json(self.folder / RECORD_NAME, self._record)


def _resolved(text: str) -> Path:
    path = Path(text)
    with suppress(RuntimeError):  # "~name" of nobody is a plain name
        path = path.expanduser()
    return path.resolve()


def _texts_in(value: Any, seeds: Sequence[int]) -> Iterator[str]:
    """Yield the texts in a setting, those in lists and in JSON too, with each seed in place of `{seed}`."""
    if isinstance(value, str) and value:
        with suppress(ValueError):
            if isinstance(inside := json.loads(value), list | dict):
                yield from _texts_in(inside, seeds)
        yield from dict.fromkeys(value.replace("{seed}", str(seed)) for seed in (seeds or [0]))
    elif isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(one, seeds)


def _patterns(record: Mapping[str, Any]) -> list[str]:
    return [*record["outputs"], *(pattern for name in record["rows"] for pattern in run_patterns(name))]


def _settings(setup: Any, args: TrainingArguments) -> dict[str, dict[str, Any]]:
    """Return the settings as they are after a way through JSON."""
    arguments = {**args.to_dict(), "num_processes": args.world_size * max(args.n_gpu, 1)}
    return json.loads(json.dumps({"recipe": asdict(setup), "training": arguments}, default=str))


def _read_record(folder: Path) -> dict[str, Any] | None:
    file = folder / RECORD_NAME
    if not file.is_file():
        return None
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        assert isinstance(record["settings"]["recipe"], dict)
        assert isinstance(record["settings"]["training"], dict)
        assert all(isinstance(name, str) for name in [*record["rows"], *record["outputs"]])
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise ValueError(f"{file} is not the record of an experiment ({error!r}); name another output_dir") from error
    return record


def _defaults(setup: Any) -> dict[str, Any]:
    known = [(field.name, field.default, field.default_factory) for field in fields(setup)]
    return {
        name: make() if make is not MISSING else value
        for name, value, make in known
        if value is not MISSING or make is not MISSING
    }


def _check_settings(
    folder: Path, recorded: Mapping[str, Any], given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> None:
    old = {**defaults, **recorded["recipe"]}  # a setting that is newer than the record had its default
    pairs = [(name, old.get(name), given["recipe"].get(name)) for name in sorted(old.keys() | given["recipe"].keys())]
    common = recorded["training"].keys() & given["training"].keys()  # another release of Transformers may know others
    common = {name for name in common if not name.startswith(_FREE_KINDS)}
    pairs += [(name, recorded["training"][name], given["training"][name]) for name in sorted(common)]
    others = [(name, old, new) for name, old, new in pairs if old != new and name not in _FREE]
    if others:
        raise ValueError(
            f"the experiment in {folder} was begun with other settings, and resuming it needs the same: "
            + "; ".join(f"{name} was {old!r} and is now {new!r}" for name, old, new in others)
            + "; give those that were, or name another output_dir"
        )
