"""What the paper on degeneration shows of embeddings: how those of models lie, beside word2vec's and a classifier's."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    PreTrainedTokenizerBase,
)
from transformers.utils.peft_utils import find_adapter_config_file

from hf_targets import embedding_geometry
from hf_targets.backbones.reformer.repair import repair_reformer
from hf_targets.cosine.geometry import EmbeddingGeometry
from hf_targets.cosine.negative_direction import DirectionCertificate, direction_certificate
from hf_targets.data.corpora import load_parts
from hf_targets.extras import require


def load_language_model(name: str | os.PathLike[str]) -> Any:
    """Return a causal model, a masked one, or one of pairs, with its output embeddings, in evaluation mode.

    A folder of LoRA's adapters gives its base model with them.
    """
    adapter = find_adapter_config_file(str(name))
    base = name if adapter is None else json.loads(Path(adapter).read_text())["base_model_name_or_path"]
    config = AutoConfig.from_pretrained(base)
    is_masked = any(one.endswith("ForMaskedLM") or "Mdlm" in one for one in config.architectures or [])
    auto_class: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    auto_class = AutoModelForMaskedLM if is_masked else auto_class
    return repair_reformer(auto_class.from_pretrained(name)).eval()


@dataclass(frozen=True)
class Inspection:
    """What is known of one model's embeddings.

    Attributes:
        frequencies: (V,), how often each word occurs; None: not known.
        certificate: Whether a direction is negative with all hidden states; None: not asked.
        hidden_states, labels: (states, 2) on the plane of the embeddings, and the class of each; None: not shown.
    """

    geometry: EmbeddingGeometry
    frequencies: Tensor | None = None
    certificate: DirectionCertificate | None = None
    hidden_states: Tensor | None = None
    labels: Tensor | None = None

    def numbers(self) -> dict[str, float | int | bool | None]:
        """Return the numbers that are known, as JSON can hold them; None for others."""
        numbers: dict[str, Any] = {
            name: value if value is None or math.isfinite(value) else None
            for name, value in vars(self.geometry).items()
            if isinstance(value, int | float | None)
        }
        found = self.certificate
        exists = None if found is None else found.direction is not None
        return {**numbers, "has_negative_direction": exists, "margin": None if found is None else found.margin}


def inspect_embeddings(
    model_or_weight: Any, frequencies: Tensor | None = None, states: Tensor | None = None, labels: Tensor | None = None
) -> Inspection:
    """Return how embeddings lie, and whether a direction is negative with all of the hidden states (states, d).

    Labels (states,) are the class of each state, which a figure then shows; without them the states are not shown.
    """
    geometry = embedding_geometry(model_or_weight, frequencies)
    counts = None if frequencies is None else frequencies[geometry.is_row]
    certificate = None if states is None else direction_certificate(states)
    seen = None if states is None or labels is None else states.double() @ geometry.plane.T
    return Inspection(geometry, counts, certificate, seen, labels)


def inspection_rows(inspections: Mapping[str, Inspection]) -> list[list[str]]:
    """Return the rows of a table with a column for each model; a cell is empty where a number is not known."""
    rows = [[name, *map(shown, inspections.values())] for name, shown in _SHOWN.items()]
    return [row for row in rows if any(row[1:])]


def _correlation(one: Inspection) -> str:
    found = one.geometry.norm_frequency_correlation
    return "" if found is None or math.isnan(found) else f"{found:.3f}"


def _direction(one: Inspection) -> str:
    if (found := one.certificate) is None:
        return ""
    return "no" if found.direction is None else f"yes, margin {found.margin:.3f}"


_SHOWN = {
    "embeddings": lambda one: f"{one.geometry.num_rows:,}",
    "size": lambda one: f"{one.geometry.plane.shape[1]:,}",
    "mean cosine of all pairs": lambda one: f"{one.geometry.mean_cosine:.4f}",
    "pairs with a positive cosine": lambda one: f"{one.geometry.share_of_positive_cosines:.1%}",
    "aperture of the cone with 99%": lambda one: f"{one.geometry.aperture:.1f}°",
    "isotropy": lambda one: f"{one.geometry.isotropy:.3g}",
    "second singular value / first": lambda one: f"{one.geometry.singular_values[1:2].sum():.3f}",
    "effective rank": lambda one: f"{one.geometry.effective_rank:.1f}",
    "rank correlation of norm and frequency": _correlation,
    "a uniformly negative direction": _direction,
}


def token_frequencies(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> Tensor:
    """Return how often each token occurs in texts, (vocab,)."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for start in range(0, len(texts), 1000):
        found = tokenizer(list(texts[start : start + 1000]), add_special_tokens=False, verbose=False)["input_ids"]
        counts += torch.bincount(torch.tensor([one for row in found for one in row]).long(), minlength=vocab_size)
    return counts


def train_word_vectors(texts: Sequence[str], *, size: int = 300, min_count: int = 5, seed: int = 0) -> Tensor:
    """Return vectors (words, d) that word2vec learns: skip-gram with 5 negative samples, 5 epochs, one thread."""
    models = require("gensim.models", extra="geometry")
    sentences = [line.split() for text in texts for line in text.splitlines() if line.strip()]
    settings = {"vector_size": size, "min_count": min_count, "sg": 1, "negative": 5, "seed": seed + 1, "workers": 1}
    return torch.from_numpy(models.Word2Vec(sentences, **settings).wv.vectors.copy())


def train_digit_classifier(
    name: str = "digits", size: int = 64, seed: int = 0, num_steps: int = 500
) -> tuple[Tensor, Tensor, Tensor]:
    """Train two convolutions and two linear layers on images of digits, in seconds, but for 500 of them.

    Args:
        name: A data set with the columns `image` and `label`, such as `"ylecun/mnist"`, or `"digits"`, scikit-learn's
            1,797 images of 8 x 8, a stand-in for MNIST that needs no data.
    Returns: The rows (10, d) of the last layer; the hidden states (500, d) of other images, and their digits (500,).
    Source: Gao et al. 2019, figure 1 (c), which is of MNIST.
    """
    if name == "digits":
        found = require("sklearn.datasets", extra="geometry").load_digits()
        images, labels = torch.as_tensor(found.images), torch.as_tensor(found.target)
    else:
        rows = load_parts(name)["train"]
        images, labels = torch.as_tensor(np.stack([*map(np.asarray, rows["image"])])), torch.tensor(rows["label"][:])
    images = (images / images.max()).float()[:, None]
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        order = torch.randperm(len(labels))
        train, test = order[:-500], order[-500:]
        reader = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(32 * (images.shape[2] // 2) * (images.shape[3] // 2), size), nn.ReLU()),
        )
        last = nn.Linear(size, 10)
        optimizer = torch.optim.AdamW([*reader.parameters(), *last.parameters()], lr=2e-3)
        for _ in range(num_steps):
            chosen = train[torch.randint(len(train), (64,))]
            loss = nn.functional.cross_entropy(last(reader(images[chosen])), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return last.weight.detach(), reader(images[test]).detach(), labels[test]
