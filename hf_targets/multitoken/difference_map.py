"""Output embeddings of a text's words and their differences, reduced together to two dimensions."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.output_matrix import output_embedding
from hf_targets.backbones.weight_access import embedding_rows, num_rows
from hf_targets.extras import require
from hf_targets.maths.differences import word_differences

LEAST_POINTS = 5  # of all levels together, below which t-SNE shows nothing


@dataclass(frozen=True)
class TargetVectors:
    """The targets of one level, one for each token of some sentences.

    Attributes:
        level: 0 for embeddings, n for n-level word differences.
        vectors: (tokens, d), float32.
        words: For each vector the word of the token that it is a target for, the one it begins with.
        before: For each vector the word before that; None at level 0, and for the last `level` vectors of a sentence,
            which are not of this level alone, as no word follows (equations 7 and 8).
    """

    level: int
    vectors: Float[Tensor, "tokens dim"]
    words: list[str]
    before: list[str | None]

    def is_whole(self) -> list[bool]:
        """Return for each vector whether all of its words exist."""
        return [self.level == 0 or before is not None for before in self.before]


@dataclass(frozen=True)
class TargetDiversity:
    """How diverse the targets of a level are.

    Attributes:
        num_targets: Vectors that are counted: those whose words all exist.
        mean_cosine: Mean cosine between two of them, in [-1, 1].
        within_words: Share of their variance that is between targets of the same word, in [0, 1]; 0 where a word has
            one target. It is 1 minus the share that the word explains.
    """

    level: int
    num_targets: int
    mean_cosine: float
    within_words: float


def target_vectors(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], *, max_level: int = 2
) -> list[TargetVectors]:
    """Return the output embeddings of all tokens of sentences, and their differences up to a level.

    Args:
        model: Any language model with output embeddings, with heads or without.
        tokenizer: The model's. Its special tokens are not added. A token is named by its text without spaces around it,
            or as the tokenizer writes it where another token of the sentences has the same text, or there is no letter.
        max_level: 1 or more.
    Raises:
        ValueError: If `max_level` is below 1, a sentence has no tokens beyond it, there is no sentence, or a token id
            is beyond the output embeddings.
    Source: Heo et al., "Diverse Target Representations for Language Models with Word Difference Representations",
        section 4.1.3.
    """
    if max_level < 1:
        raise ValueError(f"max_level must be 1 or more, got {max_level}")
    if not sentences:
        raise ValueError("there must be a sentence to look at, got none")
    layer = output_embedding(model)
    rows: list[list[int]] = tokenizer(list(sentences), add_special_tokens=False, verbose=False)["input_ids"]
    if short := [text for text, ids in zip(sentences, rows, strict=True) if len(ids) <= max_level]:
        raise ValueError(
            f"differences of level {max_level} need sentences of more than {max_level} tokens, got {short[0][:60]!r}; "
            "leave it out"
        )
    if (largest := max(map(max, rows))) >= num_rows(layer):
        raise ValueError(f"token ids must be below {num_rows(layer)}, got {largest}; give the model's own tokenizer")
    names, found = _names({id_ for ids in rows for id_ in ids}, tokenizer), []
    with torch.no_grad():
        embedded = [embedding_rows(layer, torch.tensor(ids, device=model.device)).float().cpu() for ids in rows]
        for level in range(max_level + 1):
            vectors = torch.cat([word_differences(one[None], level)[0] for one in embedded])
            words, before = [], []
            for ids in rows:
                for at, id_ in enumerate(ids):
                    target = at + level
                    words.append(names[ids[target] if target < len(ids) else id_])
                    before.append(names[ids[target - 1]] if level and target < len(ids) else None)
            found.append(TargetVectors(level, vectors, words, before))
    return found


def _names(ids: set[int], tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Return a name of each token, which no other has."""
    texts = {id_: str(tokenizer.decode([id_])).strip() for id_ in ids}
    counts = Counter(texts.values())
    written = {id_: str(tokenizer.convert_ids_to_tokens([id_])[0]) for id_ in ids}
    return {id_: text if text and counts[text] == 1 else written[id_] for id_, text in texts.items()}


def target_diversity(targets: TargetVectors) -> TargetDiversity:
    """Return how diverse the targets of a level are, over the vectors whose words all exist.

    Raises:
        ValueError: If there are fewer than two of them.
    """
    kept = torch.tensor(targets.is_whole())
    vectors = targets.vectors[kept].double()
    words = [word for word, whole in zip(targets.words, kept.tolist(), strict=True) if whole]
    if len(words) < 2:
        raise ValueError(f"diversity compares targets, and needs at least 2, got {len(words)}; give more text")
    count = len(words)
    mean_cosine = (F.normalize(vectors, dim=1).sum(0).square().sum() - count) / (count * (count - 1))
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    groups = torch.tensor([numbers[word] for word in words])
    sums = torch.zeros(len(numbers), vectors.shape[1], dtype=vectors.dtype).index_add(0, groups, vectors)
    means = sums / groups.bincount()[:, None]
    within, total = (vectors - means[groups]).square().sum(), (vectors - vectors.mean(0)).square().sum()
    share = (within / total).item() if total else 0.0
    return TargetDiversity(targets.level, count, mean_cosine.item(), share)


def map_targets(
    levels: Sequence[TargetVectors], *, perplexity: float = 30.0, seed: int = 0
) -> list[Float[Tensor, "tokens 2"]]:
    """Return the vectors of all levels, reduced together to two dimensions by t-SNE: one tensor for each level.

    Args:
        perplexity: Of t-SNE, roughly the number of neighbours; scikit-learn's default. The paper gives none.
    Raises:
        ValueError: If there are too few vectors, or `perplexity` is not in (0, number of vectors).
        ImportError: If scikit-learn is missing.
    Source: van der Maaten and Hinton 2008.
    """
    together = torch.cat([one.vectors for one in levels])
    if len(together) < LEAST_POINTS:
        raise ValueError(f"t-SNE needs at least {LEAST_POINTS} vectors, got {len(together)}; give more text")
    if not 0 < perplexity < len(together):
        raise ValueError(
            f"perplexity must be above 0 and below the {len(together)} vectors, got {perplexity}; lower it"
        )
    require("sklearn", extra="figures")
    from sklearn.manifold import TSNE

    reduced = TSNE(n_components=2, perplexity=perplexity, random_state=seed, init="pca").fit_transform(together.numpy())
    return list(torch.from_numpy(reduced).split([len(one.words) for one in levels]))


def check_word(levels: Sequence[TargetVectors], word: str) -> None:
    """Make sure that a word is one of the targets of level 1.

    Raises:
        ValueError: If it is not.
    """
    known = {
        name for one in levels if one.level == 1 for name, whole in zip(one.words, one.is_whole(), strict=True) if whole
    }
    if word not in known:
        alike = sorted(known, key=lambda name: (word not in name, not name.isalpha(), name))[:5]
        raise ValueError(
            f"the word to zoom in on must follow another in the sentences, and {word!r} does not; give another, such "
            f"as {', '.join(map(repr, alike))}"
        )
