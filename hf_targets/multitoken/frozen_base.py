"""What heads learn from on a frozen model, computed once and kept on disk: text that it writes, its hidden states."""

import copy
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.positions import position_limit
from hf_targets.backbones.weight_access import execution_device, is_sharded
from hf_targets.backbones.weight_hash import weight_hash
from hf_targets.data.atomic_write import written_together
from hf_targets.data.progress import progress
from hf_targets.maths.losses import IGNORED


def _digest(model: PreTrainedModel, *parts: Any) -> str:
    """Return a number in hexadecimal digits that changes with a model's weights and settings, and with the parts."""
    told = [model.name_or_path if is_sharded(model) else weight_hash(model), str(model.dtype), *parts]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


@torch.no_grad()
def write_texts(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    folder: str | os.PathLike[str],
    *,
    block_size: int,
    batch_size: int = 64,
    temperature: float = 1.0,
    seed: int = 0,
) -> Dataset:
    """Return texts that a causal model samples after prompts, up to an end token of its generation configuration.

    A batch is kept in `folder` as soon as it is written. A call with the same arguments reads what is there, and goes
    on from there if an earlier one was cut. The global random state stays as it was.

    Args:
        prompts: Tokens of each.
        folder: Of the texts of any models, which it tells apart by their weights.
        block_size: Tokens of a prompt and its text; a row is padded on the right to that length.
        batch_size: Prompts at once.
    Returns: `input_ids`, `attention_mask` and `labels`, which are -100 at the prompt and at padding.
    Raises:
        ValueError: If there is no prompt, or one is empty or leaves no room for a text, or the model has too few
            positions.
    """
    limit, lengths = position_limit(model), [len(prompt) for prompt in prompts]
    if limit is not None and block_size > limit:
        raise ValueError(f"block_size must be at most the model's {limit} positions, got {block_size}")
    if not lengths or not 0 < min(lengths) <= max(lengths) < block_size:
        raise ValueError(
            f"there must be prompts of 1 to {block_size - 1} tokens (block_size - 1), got {len(lengths)}, of "
            f"{min(lengths, default=0)} to {max(lengths, default=0)} tokens"
        )
    known: Any = model.generation_config.eos_token_id  # pyright: ignore[reportOptionalMemberAccess]
    ends = [] if known is None else torch.as_tensor(known).flatten().tolist()
    padding = ends[0] if ends else 0
    writer = copy.copy(model)  # shares the weights; `generate` takes options that are not given from generation_config
    ending: Any = {"max_length": block_size, "eos_token_id": ends or None, "pad_token_id": padding}
    writer.generation_config = GenerationConfig(do_sample=True, temperature=temperature, top_k=0, **ending)
    settings = [list(map(list, prompts)), block_size, batch_size, temperature, seed, ends]
    kept = Path(folder, f"texts-{_digest(model, *settings)}")
    batches = [prompts[start : start + batch_size] for start in range(0, len(prompts), batch_size)]
    rows = []
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices), progress(len(batches), "writing texts", unit="batch") as bar:
        for number, batch in enumerate(batches):
            file, longest = kept / f"{number * batch_size:06d}.json", max(map(len, batch))
            if not file.is_file():
                torch.manual_seed(seed + number * batch_size)
                read = {name: part.to(execution_device(model)) for name, part in left_padded(batch, padding).items()}
                with without_dropout(writer):
                    texts: Any = writer.generate(**read)  # pyright: ignore
                written = [_ended(text, ends) for text in texts[:, longest:].tolist()]
                with written_together(kept, file.name) as unfinished:
                    (unfinished / file.name).write_text(json.dumps(written), encoding="utf-8")
            rows += json.loads(file.read_text(encoding="utf-8"))
            bar.update(1)
    columns: dict[str, list[list[int]]] = {"input_ids": [], "attention_mask": [], "labels": []}
    for prompt, text in zip(prompts, rows, strict=True):
        empty = block_size - len(prompt) - len(text)
        columns["input_ids"].append([*prompt, *text, *[padding] * empty])
        columns["attention_mask"].append([1] * (block_size - empty) + [0] * empty)
        columns["labels"].append([IGNORED] * len(prompt) + text + [IGNORED] * empty)
    return Dataset.from_dict(columns)


def left_padded(prompts: Sequence[Sequence[int]], padding: int) -> dict[str, Tensor]:
    """Return prompts as a model reads them together, `input_ids` and `attention_mask` (rows, longest)."""
    longest = max(map(len, prompts))
    ids = [[padding] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def _ended(text: list[int], ends: list[int]) -> list[int]:
    """Return a text up to its first end token, which belongs to it."""
    return next((text[: at + 1] for at, token in enumerate(text) if token in ends), text)


class StoredStates(torch.utils.data.Dataset):
    """Rows of a data set with what a frozen causal model computes of them: `last_hidden_state`, (time, d).

    `MultiTokenForCausalLM` does then not run its backbone. The states are computed once and kept in a file, which all
    trainings on these rows read: 2 d bytes a token in half precision, 4 d in float32.

    Args:
        model: The model. Its dropout is off meanwhile.
        rows: `input_ids` and `attention_mask`, all of one length.
        folder: Of the files of any models and rows, which it tells apart by weights, settings and tokens.
        batch_size: Rows at once.
    """

    @torch.no_grad()
    def __init__(
        self, model: PreTrainedModel, rows: Dataset, folder: str | os.PathLike[str], *, batch_size: int = 16
    ) -> None:
        self._rows = rows
        read = [name for name in rows.column_names if name not in ("labels", "num_words")]
        tokens = rows.with_format(None).select_columns(read)
        ids = tokens["input_ids"][:]
        if len({*map(len, ids)}) != 1:
            raise ValueError(
                f"rows must have one length, and theirs is of {min(map(len, ids), default=0)} to "
                f"{max(map(len, ids), default=0)} tokens; pack_blocks cuts texts into such rows"
            )
        shape = len(ids), len(ids[0]), model.get_output_embeddings().weight.shape[1]  # pyright: ignore
        size = shape[0] * shape[1] * shape[2]
        file = Path(folder, f"states-{_digest(model, tokens[:])}.bin")
        if not file.is_file() or file.stat().st_size != size * model.dtype.itemsize:
            with (
                without_dropout(model),
                written_together(folder, file.name) as unfinished,
                (unfinished / file.name).open("wb") as out,
                progress(len(ids), "computing hidden states", unit="row") as bar,
            ):
                for batch in tokens.with_format("torch", device=execution_device(model)).iter(batch_size):
                    states = model.base_model(**batch, use_cache=False)[0]  # pyright: ignore[reportCallIssue]
                    out.write(states.to(model.dtype).cpu().contiguous().view(torch.uint8).numpy().tobytes())
                    bar.update(len(states))
        self._states = torch.from_file(str(file), size=size, dtype=model.dtype).view(shape)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self._rows[index], "last_hidden_state": self._states[index]}
