"""Word vectors to compare embeddings with: word2vec's, read from a file or trained on the spot."""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from hf_targets.extras import require


def read_word_vectors(path: Path | str) -> Tensor:
    """Return the vectors (words, d) of a file in the format of word2vec, binary if its name ends with `.bin`.

    Raises:
        ValueError: If it is no such file.
        ImportError: If gensim is missing.
    """
    require("gensim", extra="geometry")
    from gensim.models import KeyedVectors

    path = Path(path)
    try:
        vectors = KeyedVectors.load_word2vec_format(str(path), binary=".bin" in path.suffixes)
    except (ValueError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} must have word vectors in the format of word2vec ({error}): a first line with their number and "
            "size, such as 400000 300, and then a word and its numbers a line; add that line to files of GloVe"
        ) from error
    return torch.from_numpy(vectors.vectors.copy())


def train_word_vectors(texts: Iterable[str], *, size: int = 300, min_count: int = 5, seed: int = 0) -> Tensor:
    """Return vectors (words, d) that word2vec learns from texts: skip-gram with 5 negative samples, 5 epochs.

    One thread trains them, so that a seed gives the same ones again.

    Raises:
        ValueError: If no word occurs often enough.
        ImportError: If gensim is missing.
    """
    require("gensim", extra="geometry")
    from gensim.models import Word2Vec

    sentences = [line.split() for text in texts for line in text.splitlines() if line.strip()]
    try:
        model = Word2Vec(sentences, vector_size=size, min_count=min_count, sg=1, negative=5, seed=seed + 1, workers=1)
    except RuntimeError as error:
        raise ValueError(f"no word occurs {min_count} times; give more text, or lower min_count") from error
    return torch.from_numpy(model.wv.vectors.copy())
