"""Sequence-level distillation: a training set whose targets a teacher translated."""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset, DatasetDict, concatenate_datasets
from datasets.fingerprint import Hasher
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.positions import position_limit
from hf_targets.backbones.weight_hash import weight_hash
from hf_targets.data.pair_encoding import encode_sources
from hf_targets.data.pairs import check_pairs
from hf_targets.data.shards import run_shards
from hf_targets.evaluation.translation import translate

_MARK = re.compile(r">>[^<>]*<<")  # of Marian's models of several target languages


def distill(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Mapping[Any, Dataset],
    cache_dir: str | Path,
    *,
    part_size: int = 2000,
    workers: int | None = None,
    truncate: bool = False,
    source_prefix: str | None = None,
    **settings: Any,
) -> DatasetDict:
    """Return pairs whose training targets are a teacher's translations; other splits stay as they are.

    The training text is translated in parts, by `Dataset.map`, which processes share. A part that is in the cache, of
    the same teacher, text and settings, is not translated again, so that a broken call goes on where it was.

    Args:
        model: The teacher, an encoder-decoder model.
        tokenizer: The teacher's.
        pairs: Splits with the columns `source` and `target`: `train`, whose targets are not read, and others.
        cache_dir: Folder of the parts.
        part_size: Pairs in a part; a source that a part has several times is translated once.
        workers: Processes of Ray, as for `run_shards`, each with a copy of the teacher; None: this process.
        truncate: Whether sources that are longer than the tokenizer or the teacher takes are cut for it. Otherwise
            they are an error.
        source_prefix: Put before each source for the teacher, such as `">>de<<"`.
        settings: More arguments of `translate` and `generate`, such as `num_beams`.
    Raises:
        ValueError: Before anything is translated, if the model has no encoder, there is no training split or it has no
            row, a source is too long, a number is out of range, or the language in the prefix is no token.
    Source: Kim and Rush 2016, "Sequence-Level Knowledge Distillation".
    """
    if not model.config.is_encoder_decoder:
        raise ValueError(f"a teacher translates with encoder and decoder, and {type(model).__name__} has no encoder")
    splits = list(pairs) if isinstance(pairs, Mapping) else type(pairs).__name__
    if "train" not in splits:
        raise ValueError(f"pairs must have a split train, got {splits}; name the text to translate so")
    if not isinstance(part_size, int) or part_size < 1:
        raise ValueError(f"part_size must be an integer, 1 or more, got {part_size!r}")
    check_pairs(pairs["train"])
    known = tokenizer.get_vocab()
    if missing := [mark for mark in _MARK.findall(source_prefix or "") if mark not in known]:
        raise ValueError(f"the teacher's tokenizer has no token {missing[0]}, so it would read its letters as text")
    limits = [limit for limit in (position_limit(model), tokenizer.model_max_length) if limit is not None]
    reading: dict[str, Any] = {"truncate": truncate, "source_prefix": source_prefix, "max_source_length": min(limits)}
    train, state, folder = pairs["train"], PartialState(cpu=not torch.accelerator.is_available()), Path(cache_dir)
    if not truncate:
        encode_sources(train, tokenizer, **reading)
    folder.mkdir(parents=True, exist_ok=True)
    told = getattr(model, "generation_config", None)
    languages = [getattr(tokenizer, name, None) for name in ("src_lang", "tgt_lang")]
    teacher = [weight_hash(model), str(model.dtype), None if told is None else told.to_dict(), languages]

    def translated(batch: dict[str, list[str]]) -> dict[str, list[str]]:
        sources = list(dict.fromkeys(batch["source"]))
        encoded = encode_sources(Dataset.from_dict({"source": sources, "target": sources}), tokenizer, **reading)
        texts = dict(zip(sources, translate(model, encoded, tokenizer, **settings), strict=True))
        return {"target": [texts[source] for source in batch["source"]]}

    parts = []
    for start in range(0, len(train), part_size):
        part = train.select(range(start, min(start + part_size, len(train)))).select_columns("source")
        fingerprint = Hasher.hash([*teacher, reading, sorted(settings.items()), part["source"][:]])
        cached = {"cache_file_name": str(folder / f"{fingerprint}.arrow"), "load_from_cache_file": True}
        batched = {"batched": True, "batch_size": part_size, "new_fingerprint": fingerprint}
        parts.append(partial(part.map, translated, **batched, **cached))
    mine = range(state.process_index, len(parts), state.num_processes)
    sizes = {number: min(part_size, len(train) - number * part_size) for number in mine}
    how: Any = {"description": "translating", "unit": "pair"}
    list(run_shards(lambda number: len(parts[number]()), sizes, workers=workers, **how))
    state.wait_for_everyone()
    return DatasetDict({**pairs, "train": concatenate_datasets([part() for part in parts])})
