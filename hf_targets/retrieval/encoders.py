"""What gives documents and queries their vectors: any `SentenceTransformer`, the two encoders of DPR, or your own."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch

from hf_targets.extras import require


class Encoder(Protocol):
    """Gives texts their vectors, (texts, dim): tensors or arrays, finite, each row independent of the others.

    A `SentenceTransformer` is one, and so is what `dpr_encoder` returns.
    """

    def encode_document(self, texts: list[str], /) -> Any:
        """Return the vectors of documents."""
        ...

    def encode_query(self, texts: list[str], /) -> Any:
        """Return the vectors of queries."""
        ...


def encoder_of(given: Encoder | Callable[[list[str]], Any]) -> Encoder:
    """Return an encoder; one made of a function, such as a model's `encode`, reads documents and queries alike."""
    if hasattr(given, "encode_document"):
        return given  # pyright: ignore[reportReturnType]
    if not callable(given):
        raise ValueError(f"an encoder must be a SentenceTransformer or a function of texts, got {given!r:.60}")
    return SimpleNamespace(encode_document=given, encode_query=given)  # pyright: ignore[reportReturnType]


def load_encoder(*names: str, dtype: str = "auto") -> Any:
    """Return the `SentenceTransformer` of a name or folder, or `dpr_encoder` of two.

    Args:
        dtype: Type of the weights, a name of torch's; "auto": the checkpoint's. "bfloat16" is faster on a GPU, and on
            processors that have it.
    Raises:
        ImportError: If sentence-transformers is not installed.
    """
    if len(names) == 2:
        encoder = dpr_encoder(*names)
        return encoder if dtype == "auto" else encoder.to(getattr(torch, dtype))
    library = require("sentence_transformers", extra="retrieval")
    return library.SentenceTransformer(*names, model_kwargs={"dtype": dtype})


def dpr_encoder(context_name: str, question_name: str, **arguments: Any) -> Any:
    """Return a `SentenceTransformer` that reads documents and queries with the two encoders of DPR.

    Args:
        context_name: Such as "facebook/dpr-ctx_encoder-single-nq-base", or a folder.
        question_name: Such as "facebook/dpr-question_encoder-single-nq-base", or a folder.
        arguments: Of `SentenceTransformer`, such as `device`.
    Raises:
        ValueError: If one is not this encoder of DPR.
        ImportError: If sentence-transformers is not installed.
    Source: Karpukhin et al., "Dense Passage Retrieval for Open-Domain Question Answering".
    """
    library = require("sentence_transformers", extra="retrieval")
    modules = require("sentence_transformers.base.modules", extra="retrieval")
    output = {"text": {"method": "forward", "method_output_name": "pooler_output"}}

    def route(name: str, kind: str) -> list[Any]:
        # this task loads the class that config.architectures names; AutoModel takes the question encoder for both
        given: Any = {"modality_config": output, "module_output_name": "sentence_embedding"}
        encoder = modules.Transformer(name, transformer_task="retrieval", **given)
        if type(encoder.model).__name__ != kind:
            raise ValueError(
                f"{name} must be a {kind}, got a {type(encoder.model).__name__}; give DPR's context encoder, then its "
                "question encoder; others go to SentenceTransformer"
            )
        encoder.transformer_task = "feature-extraction"
        return [encoder]

    routes = route(question_name, "DPRQuestionEncoder"), route(context_name, "DPRContextEncoder")
    router = modules.Router.for_query_document(*routes)
    return library.SentenceTransformer(modules=[router], similarity_fn_name="dot", **arguments)


def vectors_of(texts: list[str], encode: Callable[[list[str]], Any], dim: int | None = None) -> np.ndarray:
    """Return the vectors of texts, (texts, dim), float32.

    Args:
        dim: Their width, where it is known.
    Raises:
        ValueError: If `encode` does not return finite vectors of this width, one a text.
    """
    vectors = torch.as_tensor(encode(texts)).detach().float().cpu().numpy()
    if vectors.ndim != 2 or vectors.shape != (len(texts), dim or vectors.shape[1]) or not np.isfinite(vectors).all():
        raise ValueError(
            f"an encoder must return finite vectors, ({len(texts)}, {dim or 'dim'}) for {len(texts)} texts, got shape "
            f"{vectors.shape}, {'finite' if np.isfinite(vectors).all() else 'not finite'}"
        )
    return vectors
