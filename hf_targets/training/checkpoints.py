"""The newest whole checkpoint: one that was broken off while it was saved, or lost a part, is passed over."""

import json
import logging
import os
import shutil
import zipfile
from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers import Trainer
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import sort_checkpoints
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME
from transformers.utils.peft_utils import ADAPTER_SAFE_WEIGHTS_NAME, ADAPTER_WEIGHTS_NAME

logger = logging.getLogger(__name__)

_INDICES = {SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME}
_WEIGHTS = {SAFE_WEIGHTS_NAME, WEIGHTS_NAME, ADAPTER_SAFE_WEIGHTS_NAME, ADAPTER_WEIGHTS_NAME, *_INDICES}


def newest_checkpoint(folder: str | Path) -> str | None:
    """Return the newest whole checkpoint in a Trainer's output folder, None if there is none.

    Trainer writes its own state last: a checkpoint without it was broken off while it was saved.
    """
    for checkpoint in map(Path, reversed(sort_checkpoints(str(folder)))):
        try:
            json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count == 1 or len(list(checkpoint.glob("rng_state_*.pth"))) >= count:
            return str(checkpoint)
    return None


def newest_whole_checkpoint(trainer: Trainer) -> Path | None:
    """Return the checkpoint in a trainer's output folder to resume from, None if there is none.

    Newer ones that are not whole are named in a warning, and left as they are.
    """
    folder = Path(trainer.args.output_dir or ".")
    for checkpoint in map(Path, reversed(sort_checkpoints(str(folder)))):
        defect = defect_of(checkpoint, trainer)
        if defect is None:
            return checkpoint
        logger.warning("%s is not whole (%s), and is passed over", checkpoint, defect)
    return None


def set_newer_aside(checkpoint: Path) -> None:
    """Rename the checkpoints newer than this one, which were passed over, to "broken-checkpoint-...".

    Trainer keeps the checkpoints of the highest numbers: it would keep these, and remove whole ones.
    """
    newest_first = [Path(name) for name in reversed(sort_checkpoints(str(checkpoint.parent)))]
    for newer in newest_first[: newest_first.index(checkpoint)]:
        aside = newer.with_name(f"broken-{newer.name}")
        if aside.exists():
            shutil.rmtree(aside)
        newer.rename(aside)
        logger.warning("%s is %s now", newer, aside.name)


def defect_of(checkpoint: Path, trainer: Trainer) -> str | None:
    """Return what a checkpoint lacks to go on from, None if it is whole.

    Trainer writes the weights and their configuration first, then the states of the optimizer, of the schedule and of
    random numbers, and its own state last. So a checkpoint with that was saved to its end. Files that a full disk or a
    lost machine cut short are found without reading them: JSON is parsed, of tensors only the table of contents is
    compared with the size of the file.
    """
    names = {str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*")}
    if missing := sorted(_needed_files(trainer) - names):
        return f"it lacks {', '.join(missing)}"
    return _lacking_weights(names, trainer) or _damage_of(checkpoint, names)


def defect_of_weights(checkpoint: Path, trainer: Trainer) -> str | None:
    """Return what a checkpoint lacks to load its weights, None if they are whole; of other states it may have none."""
    names = {str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*")}
    of_weights = {name for name in names if Path(name).suffix == ".safetensors" or Path(name).name in _WEIGHTS}
    return _lacking_weights(names, trainer) or _damage_of(checkpoint, of_weights)


def _lacking_weights(names: Iterable[str], trainer: Trainer) -> str | None:
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:  # their weights are in files of other names
        return None
    if {Path(name).name for name in names} & _WEIGHTS:
        return None
    return f"it lacks the weights, {SAFE_WEIGHTS_NAME} or {ADAPTER_SAFE_WEIGHTS_NAME}"


def is_whole_model(folder: Path) -> bool:
    """Return whether a folder has a configuration and weights, and none of its files is cut short."""
    names = {path.name for path in folder.glob("*")}
    return CONFIG_NAME in names and bool(names & _WEIGHTS) and _damage_of(folder, names) is None


def _damage_of(folder: Path, names: Iterable[str]) -> str | None:
    """Return which file is cut short, with the reason; None if none is."""
    for name in sorted(names):
        try:
            _check_whole(folder / name)
        except (SafetensorError, zipfile.BadZipFile, OSError, ValueError, KeyError, TypeError) as error:
            return f"{name}: {error}"
    return None


def _needed_files(trainer: Trainer) -> set[str]:
    args = trainer.args
    needed = {TRAINER_STATE_NAME}
    needed |= getattr(trainer, "checkpoint_files", set())
    if args.save_only_model:
        return needed
    if not args.save_on_each_node:  # then a node's folder has only the states of its own processes
        processes = range(args.world_size)
        needed |= {f"rng_state_{number}.pth" for number in processes} if args.world_size > 1 else {"rng_state.pth"}
    if not trainer.is_fsdp_enabled and not trainer.is_deepspeed_enabled:
        needed |= {OPTIMIZER_NAME, SCHEDULER_NAME}
    return needed


def _check_whole(file: Path) -> None:
    if file.suffix == ".safetensors":
        with safe_open(file, "pt"):
            pass
    elif file.suffix in (".pt", ".pth", ".bin"):
        zipfile.ZipFile(file).close()
    elif file.suffix == ".json":
        content = json.loads(file.read_text(encoding="utf-8"))
        shards = set(content["weight_map"].values()) if file.name in _INDICES else set()
        if lost := sorted(name for name in shards if not (file.parent / name).is_file()):
            raise ValueError(f"it names {', '.join(lost)}, which is missing")
        if file.name == TRAINER_STATE_NAME and not isinstance(content["global_step"], int):
            raise ValueError("it has no global_step")
