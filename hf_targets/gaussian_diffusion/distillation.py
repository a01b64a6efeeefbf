"""Sequence-level distillation: a training set whose targets are a teacher's translations, written in parts."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.data.pair_encoding import encode_pairs
from hf_targets.evaluation.translating import translate
from hf_targets.files import written_together

logger = logging.getLogger(__name__)

RECORD = "distillation.json"
_PARTS = "parts"


def distill(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Mapping[str, Dataset],
    folder: Path,
    *,
    teacher: str,
    part_size: int = 2000,
    truncate: bool = False,
    source_prefix: str | None = None,
    **settings: Any,
) -> Path:
    """Write pairs whose training targets are a teacher's translations, and return their folder, for `load_pairs`.

    The training text is translated in parts of `part_size` pairs, which processes share. A part is written whole, with
    a checksum. Called again, it goes on with the parts that are missing or broken. At the end the folder has
    `train.jsonl`, and `validation.jsonl` and `test.jsonl` with the targets that they had.

    Args:
        model: The teacher, an encoder-decoder model.
        tokenizer: The teacher's.
        pairs: Splits with the columns `source` and `target`.
        folder: Empty, or what an earlier call with the same teacher, text and settings left.
        teacher: Its name, for the record.
        truncate: Whether longer texts are cut for the teacher. Otherwise they are an error.
        source_prefix: Put before each source for the teacher, such as `">>de<<"`.
        settings: More arguments of `translate` and `generate`, such as `num_beams`.
    Raises:
        ValueError: If the folder is of another teacher, text or settings, or as `encode_pairs` and `translate` raise.
    Source: Kim and Rush 2016, "Sequence-Level Knowledge Distillation".
    """
    if part_size < 1:
        raise ValueError(f"part_size must be 1 or more, got {part_size}")
    state, train = PartialState(), pairs["train"]
    told = {"part_size": part_size, "truncate": truncate, "source_prefix": source_prefix, **settings}
    record = {"teacher": teacher, "settings": told, "num_pairs": len(train), "text": _digest(_lines(train))}
    folder = Path(folder)
    with state.main_process_first():
        _check_record(folder, record)
    parts = [
        train.select(range(start, min(start + part_size, len(train)))) for start in range(0, len(train), part_size)
    ]
    for number, part in enumerate(parts):
        file = _part(folder, number)
        if number % state.num_processes != state.process_index or _read_part(file, part) is not None:
            continue
        if file.exists():
            logger.warning(f"{file} is broken, so its {len(part):,} pairs are translated again")
        encoded = encode_pairs(part, tokenizer, truncate=truncate, source_prefix=source_prefix)
        _write_part(file, part["source"][:], translate(model, encoded, tokenizer, **settings))
        logger.info(f"part {number + 1} of {len(parts)} is written")
    state.wait_for_everyone()
    if state.is_main_process:
        _merge(folder, parts, pairs)
    state.wait_for_everyone()
    return folder


def _merge(folder: Path, parts: Sequence[Dataset], pairs: Mapping[str, Dataset]) -> None:
    rest = [split for split in ("validation", "test") if split in pairs]
    names = [f"{split}.jsonl" for split in (*rest, "train")]
    with written_together(folder, *names) as unfinished:
        with (unfinished / "train.jsonl").open("w", encoding="utf-8") as file:
            for number, part in enumerate(parts):
                lines = _read_part(_part(folder, number), part)
                if lines is None:
                    raise ValueError(f"{_part(folder, number)} is missing or broken; call distill again to write it")
                file.writelines(lines)
        for split in rest:
            (unfinished / f"{split}.jsonl").write_text("".join(_lines(pairs[split])), encoding="utf-8")


def _check_record(folder: Path, record: dict[str, Any]) -> None:
    """Write the record of a new folder, or check that of an old one."""
    file = folder / RECORD
    if not file.is_file():
        if folder.is_dir() and any(not child.name.startswith(".") for child in folder.iterdir()):  # a killed call's
            raise ValueError(f"{folder} must be empty, or have the {RECORD} of an earlier call; give another folder")
        with written_together(folder, RECORD) as unfinished:
            (unfinished / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
    old = json.loads(file.read_text(encoding="utf-8"))
    changed = [name for name in record if old.get(name) != json.loads(json.dumps(record[name]))]
    if changed:
        raise ValueError(
            f"{folder} has parts that were written with other values of {', '.join(changed)}; give another folder, or "
            f"the same teacher, text and settings as before: {old['teacher']}, {old['settings']}"
        )


def _part(folder: Path, number: int) -> Path:
    return folder / _PARTS / f"part-{number:05}.jsonl"


def _write_part(file: Path, sources: Sequence[str], targets: Sequence[str]) -> None:
    lines = [_line(*pair) for pair in zip(sources, targets, strict=True)]
    with written_together(file.parent, file.name) as unfinished:
        content = "".join([*lines, json.dumps({"checksum": _digest(lines)}) + "\n"])
        (unfinished / file.name).write_text(content, encoding="utf-8")


def _read_part(file: Path, part: Dataset) -> list[str] | None:
    """Return the lines of a part; None if it is missing, cut short, changed, or of other sources."""
    if not file.is_file():
        return None
    *lines, end = file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True) or [""]
    if end != json.dumps({"checksum": _digest(lines)}) + "\n":
        return None
    return lines if [json.loads(line)["source"] for line in lines] == part["source"][:] else None


def _line(source: str, target: str) -> str:
    return json.dumps({"source": source, "target": target}) + "\n"


def _lines(pairs: Dataset) -> list[str]:
    return [_line(*pair) for pair in zip(pairs["source"][:], pairs["target"][:], strict=True)]


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("".join(lines).encode()).hexdigest()
