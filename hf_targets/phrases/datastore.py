"""A large set of phrases on disk: their tokens and counts, their embeddings, and an index that a model searches."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_targets.backbones.weight_access import execution_device
from hf_targets.phrases.decoding.table import PhraseTable
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from hf_targets.retrieval.disk_index import DiskIndex
from hf_targets.retrieval.disk_index_builder import VECTORS
from hf_targets.retrieval.vector_search import check_fingerprint

TOLD, COUNTS, INPUTS, OUTPUTS, INDEX = "datastore.json", "counts.npy", "inputs.npy", "outputs.npy", "index"


class PhraseDatastore:
    """Phrases that were mined and embedded before, as `PhraseDatastoreBuilder` writes them.

    >>> store = PhraseDatastore.from_folder("runs/store/phrases", tokenizer)  # doctest: +SKIP
    >>> model.generate(**prompt, phrases=store.table(model), phrase_index=store.index)  # doctest: +SKIP

    Attributes:
        vocabulary: The phrases, first those that save the most steps: the highest count * (tokens - 1).
        counts: (P,), how often each was found.
        inputs, outputs: (P, d) and (P, d) or (P, d + 1), float16, mapped from files: only what is read is in memory.
        index: Proposes phrases in generation; None: all are compared.
        fingerprint: `phrase_fingerprint` of the model that embedded them.
    """

    def __init__(
        self,
        vocabulary: PhraseVocabulary,
        counts: np.ndarray,
        inputs: Tensor,
        outputs: Tensor,
        index: DiskIndex | None,
        fingerprint: Mapping[str, str],
    ) -> None:
        self.vocabulary, self.counts, self.inputs, self.outputs = vocabulary, counts, inputs, outputs
        self.index, self.fingerprint = index, dict(fingerprint)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str], tokenizer: PreTrainedTokenizerBase) -> Self:
        """Open a datastore.

        Raises:
            ValueError: If there is none, it is not complete or damaged, or the tokenizer is another one.
        """
        folder = Path(folder)
        try:
            told = json.loads((folder / TOLD).read_text(encoding="utf-8"))
            counts = np.load(folder / COUNTS)
            inputs = torch.from_numpy(np.load(folder / INPUTS, mmap_mode="c"))
            index = DiskIndex.load(folder / INDEX, fingerprint=told["fingerprint"]) if told["factory"] else None
            if index is None:
                outputs = np.load(folder / OUTPUTS, mmap_mode="c")
            else:  # which has them already
                outputs = np.memmap(folder / INDEX / VECTORS, np.float16, "c", shape=index.vectors.shape)
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(
                f"{folder} has no whole datastore of phrases ({error}); build it to its end with "
                "recipes/build_phrase_datastore.py"
            ) from error
        vocabulary = PhraseVocabulary.load(folder, tokenizer)
        return cls(vocabulary, counts, inputs, torch.from_numpy(outputs), index, told["fingerprint"])

    def table(self, model: Any) -> PhraseTable:
        """Return the phrases as an argument `phrases` for the model that embedded them.

        With an index, embeddings stay in their files. Without one they are read, in float32.

        Raises:
            ValueError: If the model's encoder is another one, or the vocabulary has changed.
        """
        check_fingerprint("the datastore", model.phrase_fingerprint(self.vocabulary), self.fingerprint)
        device, tables = execution_device(model), (self.inputs, self.outputs)
        if self.index is None:
            tables = (self.inputs.to(device).float(), self.outputs.to(device).float())
        slots = torch.arange(len(self.outputs), device=device)[None]
        return PhraseTable([self.vocabulary], *tables, slots, torch.ones_like(slots, dtype=torch.bool))
