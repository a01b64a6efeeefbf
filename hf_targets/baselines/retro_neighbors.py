"""Neighbours of chunks of a text: documents of a collection, found for a data set or while a model writes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, compress, filterfalse, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_targets.data.progress import progress
from hf_targets.retrieval.documents import DocumentRetriever, names_near
from hf_targets.retrieval.encoders import Encoder

if TYPE_CHECKING:
    from datasets import Dataset

Retrieve = Callable[[list[list[int]]], Sequence[Sequence[Sequence[int]]]]
"""Gives each chunk, which is a list of ids, its neighbours, which are lists of ids; best first, and perhaps none."""

_OWN_RUN = 8  # ids in a row that a text and a document of it share
_ROWS_AT_ONCE = 256  # whose chunks are searched together


class ChunkNeighbors:
    """The documents nearest to a chunk, for data sets (`add_to`) and as `retrieve` of `RetroForCausalLM.generate`.

    A document is a passage: what a chunk is like, and how that goes on. The model reads its first `length` tokens.

    >>> from hf_targets import word_level_tokenizer
    >>> shelf = {"pets": "the cat sat on the mat", "sky": "stars and planets shine"}
    >>> tokenizer = word_level_tokenizer([*shelf.values()])
    >>> neighbors = ChunkNeighbors(shelf, tokenizer, k=1, chunk_length=3)
    >>> [tokenizer.decode(ids) for (ids,) in neighbors([tokenizer("and stars shine")["input_ids"]])]
    ['stars and planets shine']

    Args:
        documents: A `DocumentCollection`, or texts by id.
        encoder: Of texts by id, as for `DocumentRetriever`; None: they are found by shared words (TF-IDF). A
            `SentenceTransformer` chooses its device itself: the accelerator where there is one, unless given `device`.
        k, chunk_length, length: Neighbours of a chunk, and tokens of a chunk and of a neighbour, as the model has them.
    Source: Borgeaud et al. 2022, section 2.3.
    Departs: a passage is found by all of its text; theirs by its first chunk, without what follows.
    """

    def __init__(
        self,
        documents: Any,
        tokenizer: PreTrainedTokenizerBase,
        *,
        encoder: Encoder | Callable[[list[str]], Any] | None = None,
        k: int = 2,
        chunk_length: int = 64,
        length: int = 128,
    ) -> None:
        if min(k, chunk_length, length) < 1:
            raise ValueError(f"k, chunk_length and length must be 1 or more, got {k}, {chunk_length} and {length}")
        if not hasattr(documents, "__getitem__"):
            raise ValueError(
                f"documents must be texts by id, or a DocumentCollection, as their texts are read, got "
                f"{type(documents).__name__}; give its documents and encoder"
            )
        made = DocumentRetriever.lexical if encoder is None else lambda texts: DocumentRetriever(texts, encoder)
        self._retriever = documents if hasattr(documents, "retrieve") else made(documents)
        self.documents, self.tokenizer = documents, tokenizer
        self.k, self.chunk_length, self.length = k, chunk_length, length
        self._ids: dict[str, list[int]] = {}

    def __call__(self, chunks: list[list[int]]) -> list[list[list[int]]]:
        """Return the ids of up to k neighbours of each chunk; a chunk without words has none."""
        found = self._nearest(chunks, self.k)
        self._tokenize(chain.from_iterable(found))
        return [[self._read(name)[: self.length] for name in names] for names in found]

    def add_to(self, dataset: "Dataset", *, own_text: bool = False) -> "Dataset":
        """Return a data set with the columns `neighbor_ids` and `neighbor_mask`, (chunks, k, length) in each row.

        Args:
            dataset: Rows with `input_ids`, such as the blocks of `pack_blocks`; one of them has a whole chunk.
            own_text: Whether a document may share 8 tokens in a row with the block: it tells what is to be predicted.
                Otherwise the next ones take its place, and what is then missing is masked.
        """
        from datasets import Dataset, concatenate_datasets  # `import hf_targets` reads this file

        size, most = self.chunk_length, max(map(len, dataset["input_ids"]), default=0) // self.chunk_length
        if not most:
            raise ValueError(f"neighbours need a whole chunk, {size} tokens, and no row has so many; use longer blocks")
        added: dict[str, list[Any]] = {"neighbor_ids": [], "neighbor_mask": []}
        plain = dataset.with_format(None)
        with progress(len(plain), "finding neighbours", unit="row") as bar:
            for start in range(0, len(plain), _ROWS_AT_ONCE):
                part = plain[start : start + _ROWS_AT_ONCE]
                rows = part["input_ids"]
                if "attention_mask" in part:
                    rows = [list(compress(*row)) for row in zip(rows, part["attention_mask"], strict=True)]
                for name, tensor in neighbor_tensors(self._of_rows(rows, own_text), most, self.k, self.length).items():
                    added[name] += list(tensor.numpy())
                bar.update(len(rows))
        return concatenate_datasets([dataset, Dataset.from_dict(added)], axis=1)

    def _of_rows(self, rows: list[list[int]], own_text: bool) -> list[list[list[list[int]]]]:
        """Return the neighbours of each chunk of rows, up to k, without those of the row itself unless it may be."""
        chunks = [_chunks(ids, self.chunk_length) for ids in rows]
        counts = [self.k + 4 + len(ids) // 16 for ids in rows]  # some may be of the text itself
        found = self._nearest(list(chain.from_iterable(chunks)), max(counts))
        self._tokenize(chain.from_iterable(names[: self.k] for names in found))  # at once: most are kept
        nearest, neighbors = iter(found), []
        for ids, own, count in zip(rows, chunks, counts, strict=True):
            is_own = (lambda _: False) if own_text else _shares_a_run_with(ids)
            read = [map(self._read, names[:count]) for names in islice(nearest, len(own))]
            neighbors.append([list(islice(filterfalse(is_own, documents), self.k)) for documents in read])
        return neighbors

    def _nearest(self, chunks: list[list[int]], k: int) -> list[list[str]]:
        """Return the names of the documents nearest to each chunk."""
        return names_near(self._retriever, self.tokenizer.batch_decode(chunks, skip_special_tokens=True), k)

    def _tokenize(self, names: Iterable[str]) -> None:
        if new := [name for name in dict.fromkeys(names) if name not in self._ids]:
            texts = [self.documents[name] for name in new]
            self._ids |= zip(new, self.tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True)

    def _read(self, name: str) -> list[int]:
        self._tokenize([name])
        return self._ids[name]


def _chunks(ids: list[int], size: int) -> list[list[int]]:
    return [ids[at : at + size] for at in range(0, len(ids) - size + 1, size)]


def _shares_a_run_with(text: list[int]) -> Callable[[list[int]], bool]:
    """Return a test whether a document has 8 ids in a row of a text, or all of its own if they are fewer."""

    @cache
    def of_text(size: int) -> set[tuple[int, ...]]:
        return {*_runs(text, size)}

    def shares(document: list[int]) -> bool:
        size = min(_OWN_RUN, len(document))
        return not of_text(size).isdisjoint(_runs(document, size))

    return shares


def _runs(ids: list[int], size: int) -> Iterator[tuple[int, ...]]:
    return zip(*(ids[at:] for at in range(size)), strict=False)


def written_neighbors(
    ids: Tensor, mask: Tensor | None, found: dict[tuple[int, ...], Any], retrieve: Retrieve, size: int, length: int
) -> dict[str, Tensor]:
    """Return the neighbours of the chunks of texts (batch, time), whose padding has mask 0, as arguments of `forward`.

    Those of chunks that are not in `found` yet are retrieved, and added to it.
    """
    mask = torch.ones_like(ids) if mask is None else mask
    if mask.shape != ids.shape:
        raise ValueError(f"retrieve needs the ids of the whole text, got {ids.shape[1]} of {mask.shape[1]} tokens")
    rows = [_chunks(row[keep.bool()].tolist(), size) for row, keep in zip(ids, mask, strict=True)]
    if new := list({tuple(chunk) for row in rows for chunk in row} - found.keys()):
        found |= zip(new, retrieve(list(map(list, new))), strict=True)
    neighbors = [[found[tuple(chunk)] for chunk in row] for row in rows]
    k = max((len(some) for row in neighbors for some in row), default=0)
    tensors = neighbor_tensors(neighbors, max(map(len, rows)), max(k, 1), length)
    return {name: tensor.to(ids.device) for name, tensor in tensors.items()}


def neighbor_tensors(rows: Sequence[Sequence[Any]], num_chunks: int, k: int, length: int) -> dict[str, Tensor]:
    """Return the first k neighbours of the chunks of rows as ids and mask, (rows, num_chunks, k, length)."""
    ids, mask = torch.zeros(2, len(rows), num_chunks, k, length, dtype=torch.long)
    for row, chunks in enumerate(rows):
        for chunk, neighbors in enumerate(chunks):
            for place, neighbor in enumerate(neighbors[:k]):
                some = torch.as_tensor(neighbor, dtype=torch.long)[:length]
                ids[row, chunk, place, : len(some)], mask[row, chunk, place, : len(some)] = some, 1
    return {"neighbor_ids": ids, "neighbor_mask": mask}
