"""Vectors to search among and their queries: made ones, or phrases and states of a model."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_targets import DynamicVocabForCausalLM, PhraseVocabulary
from lab.text import TextSettings


@dataclass
class VectorSettings(TextSettings):
    """Which vectors, and what is near."""

    num_vectors: int = field(default=65_536, metadata={"help": "Vectors to search among."})
    dim: int = field(default=768, metadata={"help": "Width of made vectors."})
    num_queries: int = field(default=64, metadata={"help": "Queries of a batch."})
    num_fitted: int = field(default=0, metadata={"help": "Other queries, which indexes on disk are fitted to."})
    metric: Literal["inner_product", "distance"] = field(default="inner_product", metadata={"help": "What is near."})
    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Whose phrases and states; None: made ones."}
    )
    vectors: Literal["phrases", "keys"] = field(
        default="phrases", metadata={"help": "Of a model: phrases, or states in float16, as the keys of kNN-LM."}
    )
    num_real: int = field(default=50_000, metadata={"help": "Phrases or keys of a model; the rest are moved copies."})
    noise: float = field(default=0.3, metadata={"help": "What a copy gets of the difference of two other vectors."})


def clustered(setup: VectorSettings, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return vectors (vectors, dim) in clusters around random directions, queries near some, and others to fit to.

    They share a vector, and differ in length (log-normal, sigma .25). A cluster has 64 vectors, about.
    """
    centres = torch.randn(max(1, setup.num_vectors // 64), setup.dim, generator=generator)
    centres += 0.5 * torch.randn(setup.dim, generator=generator)
    vectors = torch.randn(setup.num_vectors, setup.dim, generator=generator)
    for block in vectors.split(65536):
        block += centres[torch.randint(len(centres), (len(block),), generator=generator)]
        block *= torch.exp(0.25 * torch.randn(len(block), 1, generator=generator)) / setup.dim**0.5
    near = vectors[torch.randint(len(vectors), (setup.num_queries + setup.num_fitted,), generator=generator)]
    queries = 8 * F.normalize(near, dim=1)
    queries += 0.3 * torch.randn(queries.shape, generator=generator)
    queries *= vectors.norm(dim=1).mean() / 8 if setup.metric == "distance" else 1
    return vectors, queries[: setup.num_queries], queries[setup.num_queries :]


@torch.no_grad()
def of_model(setup: VectorSettings, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return vectors of a model, with copies, and states of it as queries and to fit to.

    Phrases are read by an encoder of the model's first two layers. Keys are the states of windows of 64 tokens of the
    training text. Queries are those of the last positions of windows of the test text; states to fit to are of the
    validation text, 32 of a window.
    """
    assert setup.model_name_or_path is not None
    tokenizer = AutoTokenizer.from_pretrained(setup.model_name_or_path)
    base: Any = AutoModelForCausalLM.from_pretrained(setup.model_name_or_path, dtype=torch.bfloat16)
    texts = {split: "".join(part["text"]) for split, part in setup.load().items()}
    ids = {name: tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for name, text in texts.items()}

    def states(split: str, num_windows: int) -> Tensor:
        windows = torch.tensor(ids[split][: 64 * num_windows]).view(-1, 64)
        return torch.cat([base.model(some).last_hidden_state.float() for some in windows.split(16)])

    if setup.vectors == "keys":
        real = states("train", setup.num_real // 64).flatten(0, 1).half()
    else:
        real = _phrases(setup, base, tokenizer, ids["train"], generator)
    vectors = real.repeat(-(-setup.num_vectors // len(real)), 1)[: setup.num_vectors]
    for copies in vectors[len(real) :].split(65536):  # moved along differences of vectors, as those vary
        one, other = torch.randint(len(real), (2, len(copies)), generator=generator)
        copies += setup.noise * (real[one] - real[other])
    fitted = states("validation", max(1, -(-setup.num_fitted // 32)))[:, 32:].flatten(0, 1)[: setup.num_fitted]
    return vectors, states("test", setup.num_queries)[:, -1], fitted


def _phrases(setup: VectorSettings, base: Any, tokenizer: Any, train: list[int], generator: torch.Generator) -> Tensor:
    """Return the vectors of random windows of 2 to 8 tokens of a text."""
    model = DynamicVocabForCausalLM.from_base(base, phrase_encoder_layers=2, phrase_start="encoder").eval()
    windows = sorted({tuple(train[at : at + size]) for size in range(2, 9) for at in range(len(train) - size + 1)})
    chosen = torch.randperm(len(windows), generator=generator)[: setup.num_real].tolist()
    vocabulary = PhraseVocabulary.from_token_ids(
        [windows[one] for one in chosen], tokenizer, vocab_size=base.get_output_embeddings().out_features
    )
    return model.phrase_table(vocabulary).outputs.float()
