"""Sequence-level distillation: a training set whose targets are a teacher's translations, written in parts."""

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.fingerprint import Fingerprint
from hf_targets.backbones.positions import position_limit
from hf_targets.data.atomic_write import UNFINISHED, written_together
from hf_targets.data.corpora import SPLITS
from hf_targets.data.pair_encoding import encode_sources
from hf_targets.data.pairs import check_pairs, pair_references
from hf_targets.data.token_rows import texts_of
from hf_targets.evaluation.translation import translate
from hf_targets.gaussian_diffusion.teacher_languages import check_prefix
from hf_targets.training.processes import started_processes

logger = logging.getLogger(__name__)

RECORD = "distillation.json"
_PARTS = "parts"
_MAY_CHANGE = {"batch_tokens"}
"""Settings of a call that goes on: smaller batches are the way out where memory is short."""


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

    The training text is translated in parts of `part_size` pairs, which processes share; a source that a part has
    several times is translated once. A part is written whole, with a checksum. Called again, it goes on with the parts
    that are missing or broken. At the end the folder has `train.jsonl`, and `validation.jsonl` and `test.jsonl` with
    the targets that they had.

    Args:
        model: The teacher, an encoder-decoder model.
        tokenizer: The teacher's.
        pairs: Splits with the columns `source` and `target`: `train`, whose targets are not read, `validation`, `test`.
        folder: Empty, or what an earlier call with the same teacher, text and settings left; `batch_tokens` may differ.
            What a call left that was refused before it translated anything is as good as empty.
        teacher: Its name, for the record.
        truncate: Whether sources that are longer than the tokenizer or the teacher takes are cut for it. Otherwise
            they are an error.
        source_prefix: Put before each source for the teacher, such as `">>de<<"`.
        settings: More arguments of `translate` and `generate` that can be written as JSON, such as `num_beams`.
    Raises:
        ValueError: If the folder is of another teacher (by name, weights, type, languages or generation configuration),
            text or settings; `part_size` or `truncate` is of another type; the model has no encoder; there is another
            split; a source is empty or too long, or another side no text; or as `translate` raises.
    Source: Kim and Rush 2016, "Sequence-Level Knowledge Distillation".
    """
    if isinstance(part_size, bool) or not isinstance(part_size, int) or part_size < 1:
        raise ValueError(f"part_size must be an integer, 1 or more, got {part_size!r}")
    if not isinstance(truncate, bool):
        raise ValueError(f"truncate must be True or False, got {truncate!r}")
    _check_teacher(model, tokenizer, source_prefix)
    state, train = started_processes(), _training_text(pairs)
    told = {"part_size": part_size, "truncate": truncate, "source_prefix": source_prefix, **settings}
    record = {
        "teacher": teacher,
        "settings": _plain(told),
        "num_pairs": len(train),
        "text": _digest(_lines(train)),
        "languages": [getattr(tokenizer, name, None) for name in ("src_lang", "tgt_lang")],
        "dtype": str(model.dtype),
        "weights": Fingerprint.of(model).to_json(),
        "generation": _plain(_generation_of(model)),
    }
    folder = Path(folder)
    with state.main_process_first():
        if state.is_main_process:
            _remove_unfinished(folder)
            if not {path.name for path in folder.rglob("*")} - {RECORD, _PARTS}:  # of a call that was refused then
                (folder / RECORD).unlink(missing_ok=True)
        _check_record(folder, record)
    parts = [
        train.select(range(start, min(start + part_size, len(train)))) for start in range(0, len(train), part_size)
    ]
    limits = [limit for limit in (position_limit(model), tokenizer.model_max_length) if limit is not None]
    reading: dict[str, Any] = {"source_prefix": source_prefix, "truncate": truncate, "max_source_length": min(limits)}
    mine = {number: part for number, part in enumerate(parts) if number % state.num_processes == state.process_index}
    missing = {number: part for number, part in mine.items() if _read_part(_part(folder, number), part) is None}
    if missing and not truncate:  # all are looked at before the first is translated
        for part in missing.values():
            try:
                encode_sources(part, tokenizer, **reading)
            except ValueError:  # told of all parts together
                encode_sources(concatenate_datasets(list(missing.values())), tokenizer, **reading)
                raise
    for number, part in missing.items():
        file = _part(folder, number)
        if file.exists():
            logger.warning(f"{file} is broken, so its {len(part):,} pairs are translated again")
        sources = part["source"][:]
        once = part.select(list({source: row for row, source in enumerate(sources)}.values()))
        translations = translate(model, encode_sources(once, tokenizer, **reading), tokenizer, **settings)
        texts = dict(zip(once["source"], translations, strict=True))
        _write_part(file, sources, [texts[source] for source in sources])
        logger.info(f"part {number + 1} of {len(parts)} is written")
    state.wait_for_everyone()
    if state.is_main_process:
        _merge(folder, parts, pairs)
    state.wait_for_everyone()
    return folder


def _merge(folder: Path, parts: Sequence[Dataset], pairs: Mapping[str, Dataset]) -> None:
    rest = [split for split in SPLITS if split in pairs and split != "train"]
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
    for split in {*SPLITS} - {*rest, "train"}:  # of an earlier call with other splits
        (folder / f"{split}.jsonl").unlink(missing_ok=True)


def _check_teacher(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source_prefix: str | None) -> None:
    if not model.config.is_encoder_decoder:
        raise ValueError(
            f"a teacher translates with an encoder and a decoder, and {type(model).__name__} has no encoder; give a "
            "model such as Marian, T5 or NLLB"
        )
    check_prefix(tokenizer, source_prefix)


def _training_text(pairs: Mapping[str, Dataset]) -> Dataset:
    """Return the training split.

    Raises:
        ValueError: If there is none, it has no pair, or a source in it is empty; there is a split that is not written,
            or no text.
    """
    if "train" not in pairs or not len(pairs["train"]):
        raise ValueError(f"the teacher translates the split train, and there is no pair in it, of {list(pairs)}")
    if others := pairs.keys() - {*SPLITS}:
        raise ValueError(f"splits must be {', '.join(SPLITS)}, got {', '.join(sorted(others))}; rename or remove them")
    for split, part in pairs.items():
        check_pairs(part)
        if split != "train" and (bad := [row for row, one in enumerate(pair_references(part)) if not one]):
            raise ValueError(f"{split} must have a text, or a list of texts, as the target in row {bad[0]}; remove it")
    batches = texts_of(pairs["train"], "source")
    empty = [row for row, text in enumerate(text for (batch,) in batches for text in batch) if not text.strip()]
    if empty:
        raise ValueError(
            f"a source must have a text, and {len(empty)} of {len(pairs['train'])} are empty, the first in row "
            f"{empty[0]}; remove them with filter_pairs"
        )
    return pairs["train"]


def _generation_of(model: PreTrainedModel) -> dict[str, Any]:
    """Return what the teacher's own configuration of generation says, but for what loading adds."""
    told = getattr(model, "generation_config", None)
    own = {} if told is None else told.to_diff_dict()
    return {name: value for name, value in own.items() if name != "transformers_version" and not name.startswith("_")}


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings as JSON has them."""
    try:
        return json.loads(json.dumps(settings))
    except TypeError as error:
        raise ValueError(
            f"settings are kept beside the parts, and these cannot be written as JSON ({error}): {settings}; give "
            "numbers, texts and truth values"
        ) from error


def _remove_unfinished(folder: Path) -> None:
    """Remove what a killed call had not finished."""
    for left in [*folder.glob(f"{UNFINISHED}*"), *folder.glob(f"{_PARTS}/{UNFINISHED}*")]:
        shutil.rmtree(left, ignore_errors=True)


def _check_record(folder: Path, record: dict[str, Any]) -> None:
    """Write the record of a new folder, or check that of an old one."""
    file = folder / RECORD
    if not file.is_file():
        if folder.is_dir() and any(not child.name.startswith(".") for child in folder.iterdir()):
            raise ValueError(f"{folder} must be empty, or have the {RECORD} of an earlier call; give another folder")
        with written_together(folder, RECORD) as unfinished:
            (unfinished / RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
    try:
        later = ("languages", "dtype", "weights", "generation")  # which older folders do not have
        new = {name: record[name] for name in later}
        old = {**new, **json.loads(file.read_text(encoding="utf-8"))}
        changed = [name for name in record if old[name] != record[name] and name not in ("weights", "settings")]
        before, now = old["settings"], record["settings"]
        different = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        changed += [f"settings ({', '.join(different)})"] if {*different} - _MAY_CHANGE else []
        if Fingerprint.from_json(old["weights"]).differences(Fingerprint.from_json(record["weights"])):
            changed.append("weights")
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{file} is not the record of an earlier call ({type(error).__name__}: {error}); give another folder"
        ) from error
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


def _line(source: str, target: str | list[str]) -> str:
    return json.dumps({"source": source, "target": target}) + "\n"


def _lines(pairs: Dataset) -> list[str]:
    return [_line(*pair) for pair in zip(pairs["source"][:], pair_references(pairs), strict=True)]


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("".join(lines).encode()).hexdigest()
