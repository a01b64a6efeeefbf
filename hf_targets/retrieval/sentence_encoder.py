"""A sentence encoder by its name: vectors of documents and queries, and a fingerprint of what they depend on."""

import json
import os
from functools import cached_property
from typing import Any

import torch
import xxhash
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    DPRContextEncoder,
    DPRQuestionEncoder,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_targets.backbones.positions import token_limit
from hf_targets.backbones.weight_hash import add_weights, model_settings
from hf_targets.data.tokenization import tokenizer_fingerprint
from hf_targets.named_models import check_tokenizer, model_at
from hf_targets.retrieval.sentence_modules import SentenceModules
from hf_targets.retrieval.text_vectors import Pooling, text_encoder


class SentenceEncoder:
    """Texts to vectors, for documents (a call) and for queries (`encode_queries`), float32 on the CPU.

    >>> encoder = SentenceEncoder.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> encoder(["a document"]) @ encoder.encode_queries(["a query"]).T  # doctest: +SKIP

    Args:
        model: Reads the documents; in evaluation mode.
        tokenizer: Of `model`.
        query_model: Reads the queries; None: `model` does.
        query_tokenizer: Of `query_model`; None: `tokenizer`.
        pooling: As in `text_encoder`, like `normalize`, `batch_size` and `max_length`.
        query_prefix: The text that is put before each query, such as E5's "query: ".
        document_prefix: The text that is put before each document.
    Raises:
        ValueError: As `text_encoder`.
    Related: `DocumentRetriever` and `DocumentCollection` take it as their encoder.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        query_model: PreTrainedModel | None = None,
        query_tokenizer: PreTrainedTokenizerBase | None = None,
        pooling: Pooling = "mean",
        normalize: bool = True,
        batch_size: int = 32,
        max_length: int | None = None,
        query_prefix: str = "",
        document_prefix: str = "",
    ) -> None:
        self._of_documents = (model, tokenizer)
        self._of_queries = (query_model or model, query_tokenizer or tokenizer)
        self._prefixes = {"query": query_prefix, "document": document_prefix}
        self._settings: dict[str, Any] = {"pooling": pooling, "normalize": normalize, "max_length": max_length}
        self._encode_documents = text_encoder(*self._of_documents, batch_size=batch_size, **self._settings)
        self._encode_queries = text_encoder(*self._of_queries, batch_size=batch_size, **self._settings)

    @classmethod
    def from_pretrained(
        cls,
        name: str | os.PathLike[str],
        query_name: str | os.PathLike[str] | None = None,
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        query_prefix: str | None = None,
        document_prefix: str | None = None,
        batch_size: int = 32,
        max_length: int | None = None,
        device: torch.device | str | None = None,
    ) -> "SentenceEncoder":
        """Return the encoder with a name on the Hub, or in a folder.

        What is None is taken from the encoder's own settings: those of DPR (its pooler, not normalised), those in the
        format of sentence-transformers, or else the normalised mean without a prefix.

        Args:
            query_name: The encoder of queries, if they have one of their own, as in DPR.
            device: Where the models compute; None: on the CPU.
        Raises:
            ValueError: If a DPR encoder is given without the other of the two, or in its place; if the encoder needs a
                module or setting that is not supported; or as `text_encoder`.
        """
        way_out = "give the name or folder of one, such as 'sentence-transformers/all-MiniLM-L6-v2'"
        with model_at(name, "sentence encoder", way_out):
            modules = SentenceModules.of(name)
            config = AutoConfig.from_pretrained(name, subfolder=modules.subfolder)
        if config.model_type == "dpr":
            if query_name is None:
                raise ValueError(
                    f"DPR reads documents and queries with two encoders, and only {name} is given; give the context "
                    f"encoder as name and its question encoder as query_name, such as "
                    f"facebook/dpr-question_encoder-single-nq-base"
                )
            with model_at(query_name, "sentence encoder", way_out):
                query_config = AutoConfig.from_pretrained(query_name)
            _check_is(DPRContextEncoder, name, config, "name")
            _check_is(DPRQuestionEncoder, query_name, query_config, "query_name")
            modules = SentenceModules(pooling="pooler", normalize=False)
            kinds: list[Any] = [DPRContextEncoder, DPRQuestionEncoder]
        else:
            kinds = [AutoModel, AutoModel]
        models, tokenizers = [], []
        for kind, one, subfolder in zip(kinds, (name, query_name), (modules.subfolder, ""), strict=True):
            if one is not None:
                with model_at(one, "sentence encoder", way_out):
                    model = kind.from_pretrained(one, subfolder=subfolder)
                    tokenizer = AutoTokenizer.from_pretrained(one, subfolder=subfolder)
                check_tokenizer(tokenizer, model, one)
                models.append(model.to(device or "cpu").eval())
                tokenizers.append(tokenizer)
        return cls(
            models[0],
            tokenizers[0],
            query_model=models[-1],
            query_tokenizer=tokenizers[-1],
            pooling=modules.pooling if pooling is None else pooling,
            normalize=modules.normalize if normalize is None else normalize,
            query_prefix=modules.query_prefix if query_prefix is None else query_prefix,
            document_prefix=modules.document_prefix if document_prefix is None else document_prefix,
            batch_size=batch_size,
            max_length=modules.max_length if max_length is None else max_length,
        )

    def __call__(self, texts: list[str]) -> Tensor:
        """Return the vectors of documents, (texts, dim).

        Raises:
            ValueError: If a text has no token, or the model's output has no such states.
        """
        return self._encode_documents([self._prefixes["document"] + text for text in texts])

    def encode_queries(self, texts: list[str]) -> Tensor:
        """Return the vectors of queries, (texts, dim).

        Raises:
            ValueError: As a call.
        """
        return self._encode_queries([self._prefixes["query"] + text for text in texts])

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that determines the vectors but the device: the same in every process that loads the same.

        These are the weights and configurations of both models, the tokenizers, and the settings but `batch_size`. It
        is computed once: an encoder is not to be trained on.
        """
        settings = {name: self._settings[name] for name in ("pooling", "normalize")}
        digest = xxhash.xxh3_128(json.dumps([settings, self._prefixes], sort_keys=True).encode())
        pairs = [self._of_documents, self._of_queries]
        for model, tokenizer in pairs[:1] if pairs[0] == pairs[1] else pairs:
            special_ids = tokenizer("", verbose=False)["input_ids"]
            max_length = token_limit(model, tokenizer, self._settings["max_length"])
            reading = [tokenizer_fingerprint(tokenizer), special_ids, max_length, model_settings(model.config)]
            digest.update(json.dumps(reading, sort_keys=True, default=str).encode())
            add_weights(digest, model.state_dict())
        return digest.hexdigest()


def _check_is(kind: type[PreTrainedModel], name: str | os.PathLike[str], config: Any, argument: str) -> None:
    architectures = config.architectures or [kind.__name__]
    if config.model_type != "dpr" or kind.__name__ not in architectures:
        raise ValueError(
            f"{argument} must be a {kind.__name__}, and {name} is a {architectures[0]}; give DPR's context encoder as "
            f"name and its question encoder as query_name"
        )
