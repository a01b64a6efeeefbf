"""What the laws of the contract need to know of a model, and those of trainers."""

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from hf_targets.maths.losses import IGNORED
from tests.tiny_backbones import pad_rows, token_ids

Batch = dict[str, Tensor]
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
SIDES = ("left", "right")
FOUR = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
READ_SEGMENTS = ("gpt2", "gpt_neo")
"""Families that generate from segment ids too."""


def causal_text(length: int) -> Batch:
    """Return one row of so many tokens, with labels."""
    ids = token_ids(1, length, seed=length)
    return {"input_ids": ids, "labels": ids}


def remembered(make: Callable[[], Any]) -> Callable[[], Any]:
    """Return what makes the same model faster: a copy of the first, with the generator as that left it."""

    @cache
    def first() -> tuple[bytes, dict[int, Any], Tensor]:
        content, storages = io.BytesIO(), {}
        _Pickler(content, storages).dump(make())
        return content.getvalue(), storages, torch.get_rng_state()

    def again() -> Any:
        content, storages, state = first()
        torch.set_rng_state(state)
        return _Unpickler(io.BytesIO(content), storages).load()

    return again


class _Pickler(pickle.Pickler):
    """Puts the numbers of tensors into `storages` and not into the bytes, where each would be a file of its own."""

    def __init__(self, file: io.BytesIO, storages: dict[int, Any]) -> None:
        super().__init__(file)
        self.storages = storages

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, torch.storage.TypedStorage):
            return None
        key = obj._untyped_storage._cdata
        self.storages[key] = obj
        return key


class _Unpickler(pickle.Unpickler):
    """Gives each of the storages a copy, which is shared as the storage was."""

    def __init__(self, file: io.BytesIO, storages: dict[int, Any]) -> None:
        super().__init__(file)
        self.storages, self.copies = storages, {}

    def persistent_load(self, key: int) -> Any:
        if key not in self.copies:
            kept = self.storages[key]
            copy = kept._untyped_storage.clone()
            self.copies[key] = torch.storage.TypedStorage(wrap_storage=copy, dtype=kept.dtype, _internal=True)
        return self.copies[key]


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A tiny model, and what the laws of trainers need to know of it.

    Attributes:
        make: Makes it in evaluation mode, always with the same weights and without dropout.
        part_weights: Of each part of the loss, by its name.
        refuses: Arguments that it does not take, and what the error says.
    """

    make: Callable[[], Any]
    part_weights: Callable[[Any], dict[str, float]]
    refuses: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "make", remembered(self.make))


@dataclass(frozen=True, kw_only=True)
class ModelCase(TrainedModel):
    """A tiny model, and what a law needs to know of it.

    Attributes:
        batch: What it is trained on.
        text: Makes one row of a text of so many tokens, with labels.
        auto: The Auto class that loads it.
        off: Gives its logits with the target switched off, and those of the model that has none.
        generate: Generates texts in each of its ways.
        hidden: Gives what its output matrix reads of token ids.
        settings: Fields of its configuration that are not the defaults.
        sizes: What programs read from its configuration, those of `SIZES` that there are.
        options: Arguments of `forward` under which logits depend on all that the target adds.
        wraps: Makes the model that it wraps; None: it wraps none.
        source: Makes what its encoder reads in so many rows; None: it has no encoder beside the text.
        pipelines: Names of the pipelines of Transformers that take it.
        compiled: Makes a small model of all its kinds of layers, and batches, on which it is compiled; None: it is
            not, or no further kind of layer is in it than in others that are.
        unused: Parameters that no output depends on.
        stands_for: "class": its class in laws that take long; "kind": parts that no other model of its class has.
        lacks: Laws that it does not owe, and why.
    """

    batch: Callable[[], Batch]
    text: Callable[[int], Batch]
    auto: Any
    off: Callable[[Any], tuple[Tensor, Tensor]]
    generate: Callable[[Any], list[Tensor]]
    hidden: Callable[[Any, Tensor], Tensor]
    settings: dict[str, Any]
    sizes: dict[str, int]
    pipelines: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    wraps: Callable[[], PreTrainedModel] | None = None
    source: Callable[[int], Batch] | None = None
    compiled: Callable[[], tuple[Any, list[Batch]]] | None = None
    unused: frozenset[str] = frozenset()
    stands_for: Literal["class", "kind"] | None = None
    lacks: Mapping[str, str] = field(default_factory=dict)

    @property
    def model_class(self) -> type[PreTrainedModel]:
        """The class of the model."""
        return type(self.make())

    @property
    def prefix(self) -> str:
        """What the names of the text's arguments and outputs begin with."""
        return "decoder_" if self.source else ""

    def reading(self, ids: Tensor) -> Batch:
        """Return the arguments of a call that reads a text (batch, time), after a source if there is an encoder."""
        return {f"{self.prefix}input_ids": ids, **(self.source(len(ids)) if self.source else {})}

    def source_alone(self, ids: Tensor) -> Batch:
        """Return the arguments of a call that reads ids (batch, time) as any model reads what it is given first."""
        return self.reading(ids)

    def num_targets(self, batch: Batch) -> float:
        """Return how many labels of a batch are targets: in a text without a source, the first of a row is none."""
        return float((batch["labels"][:, 0 if self.source else 1 :] != IGNORED).sum())

    def padded(self, lengths: tuple[int, ...], side: str) -> Batch:
        """Return rows of text of these lengths as one batch, padded on a side.

        Padding has a label, which is none. Behind a source the text is padded on the right, where labels say so.
        """
        rows = [self.text(length) for length in lengths]
        fills = {"input_ids": (side, 0), "labels": (side, 3)}
        if self.source:
            fills |= {"attention_mask": (side, 0), "labels": ("right", IGNORED)}
        batch = {name: pad_rows([row[name][0] for row in rows], *fill) for name, fill in fills.items()}
        if "noise" in rows[0]:  # that of padding is not 0
            batch["noise"] = pad_sequence([row["noise"][0] for row in rows], batch_first=True, padding_value=3.0)
        for name in rows[0].keys() - batch.keys():
            batch[name] = torch.cat([row[name] for row in rows])
        if self.source:
            return batch
        mask = pad_rows([torch.ones(length, dtype=torch.long) for length in lengths], side, 0)
        if "position_ids" not in self.refuses:
            batch["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
        return {**batch, "attention_mask": mask}

    def is_text(self, batch: Batch) -> Tensor:
        """Return which positions of a padded batch are not padding, (batch, time)."""
        return batch["labels"] != IGNORED if self.source else batch["attention_mask"] == 1

    def without_targets(self) -> Batch:
        """Return the batch without any target."""
        targets = {"labels", "phrase_targets"}
        return {
            name: torch.full_like(value, IGNORED) if name in targets else value for name, value in self.batch().items()
        }
