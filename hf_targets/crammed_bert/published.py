"""Checkpoints of the published program of CrammedBERT: a missing or extra tensor is an error."""

# pyright: reportArgumentType=false
# (a mixin: the model has the methods of PreTrainedModel)

import logging
import os
import re
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from hf_targets.backbones.published import Translation, check_options, load_published, num_layers, rename

logger = logging.getLogger(__name__)

_BEGINNINGS = {
    "encoder.embedding.word_embedding.": "model.embed_tokens.",
    "encoder.embedding.pos_embedding.scale_factor": "model.embed_positions.scale",
    "encoder.embedding.norm.": "model.embed_norm.",
    "encoder.": "model.",
    "decoder.": "lm_head.",
    "pooler.dense.": "classifier.dense.",
    "head.": "classifier.out_proj.",
}
"""Beginnings of the names of tensors, and ours; the first that matches counts."""
_IN_LAYERS = {"attn.self_attention.": "attention.", "attn.dense.": "attention.dense.", "ffn.": ""}
_IGNORED = re.compile(r"(.*\.)?(norm_factor|pos_embedding\.pe)$")
"""Constants: of the attention's scale, and the table of sines."""
_COMPILED = re.compile(r"^(module\.|_orig_mod\.)+")
_MUST_BE: dict[str, Any] = {
    "norm": "LayerNorm",
    "norm_scheme": "pre",
    "nonlin": "GELUglu",
    "tie_weights": True,
    "decoder_bias": False,
    "skip_head_transform": True,
    "use_bias": False,
    "final_norm": True,
    "ffn_layer_frequency": 1,
    "embedding.pos_embedding": "scaled-sinusoidal",
    "embedding.normalization": True,
    "attention.causal_attention": False,
    "attention.qkv_bias": False,
    "attention.rotary_embedding": False,
    "attention.skip_output_projection": False,
    "attention.sequence_op": "torch-softmax",
    "classification_head.include_ff_layer": True,
    "classification_head.nonlin": "Tanh",
}
"""Options of the published program that must have these values, if the checkpoint tells them."""
_FIELDS = {
    "num_attention_heads": "attention.num_attention_heads",
    "max_position_embeddings": "embedding.max_seq_length",
    "hidden_dropout_prob": "hidden_dropout_prob",
    "attention_probs_dropout_prob": "attention.dropout_prob",
    "classifier_dropout": "classification_head.classifier_dropout",
    "layer_norm_eps": "norm_eps",
    "initializer_range": "init.std",
    "pad_token_id": "embedding.pad_token_id",
}
"""Fields of the configuration, and the options that they are."""
_POOLERS = {"avg": "mean", "zero_index": "cls"}


class PublishedCrammedBert:
    """`from_published` of a CrammedBERT."""

    new_parts: tuple[str, ...] = ()

    @classmethod
    def from_published(
        cls,
        source: str | os.PathLike[str] | Mapping[str, Tensor],
        *,
        hub: Mapping[str, Any] | None = None,
        **config: Any,
    ) -> Self:
        """Return a model with the weights of a checkpoint of the published program, in evaluation mode.

        Sizes follow from the tensors, all else from the options beside them: model_config.json, or config.json on the
        Hub. No code of the checkpoint is run. A classifier on a pre-trained model is new.

        Args:
            source: A file, a folder, a name on the Hub such as `"JonasGeiping/crammed-bert"`, or tensors by name.
            hub: Options of the Hub: `revision`, `token`, `cache_dir`, `subfolder` ...
            config: Fields of `CrammedBertConfig` to set, and `dtype` as `from_pretrained` takes it. Without options the
                number of heads must be given here.
        Raises:
            ValueError: If the file cannot be read; if a tensor is missing, left over or of another shape; if the number
                of heads is unknown; or if the model was built with an option that this one does not have.
        Source: JonasGeiping/cramming, its class ScriptableLMForPreTraining.
        """
        classifies = "classifier." in cls.new_parts

        def translate(content: Mapping[str, Any], settings: Mapping[str, Any], _: Any, name: str) -> Translation:
            tensors = _renamed(content)
            fields = {**_sizes(tensors, name), **_fields(_flat(settings.get("arch", settings)), name)}
            is_new = _settle_outputs(tensors, name, classifies=classifies)
            return Translation(fields, lambda _: tensors, ("classifier.",) if is_new else ())

        files = ("model.safetensors", "pytorch_model.bin", "model.pth")
        configs = ("model_config.json", "config.json")  # the program writes the first, and uploads the second
        needs = {"num_attention_heads": "which is 12 in the published model"}
        return load_published(cls, source, translate, config, files=files, configs=configs, hub=hub, needs=needs)


def _settle_outputs(tensors: dict[str, Tensor], name: str, *, classifies: bool) -> bool:
    """Settle what is above the layers, and return whether the model's classifier is new; the output matrix is tied."""
    embedding = tensors["model.embed_tokens.weight"]
    if not torch.equal(tensors.pop("lm_head.weight", embedding), embedding):
        raise ValueError(f"{name} has an output matrix that is not its embedding, and this model has one for both")
    is_classifier = any(key.startswith("classifier.") for key in tensors)
    if not classifies:
        if is_classifier:
            raise ValueError(f"{name} is a classifier; load it with CrammedBertForSequenceClassification")
        tensors["lm_head.weight"] = embedding
    elif not is_classifier:
        logger.warning("%s has no classifier, so that of this model is new; fine-tune it", name)
    return classifies and not is_classifier


def _renamed(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by our names, without constants."""
    tensors = {}
    for key, tensor in found.items():
        key = _COMPILED.sub("", key)
        for theirs, ours in _IN_LAYERS.items():
            key = key.replace(theirs, ours)
        if not _IGNORED.match(key):
            tensors[rename(key, _BEGINNINGS)] = tensor
    return tensors


def _sizes(tensors: Mapping[str, Tensor], name: str) -> dict[str, Any]:
    """Return the fields of the configuration that follow from the shapes of tensors."""
    embedding, inner = tensors.get("model.embed_tokens.weight"), tensors.get("model.layers.0.dense_in.weight")
    if embedding is None or inner is None:
        raise ValueError(f"{name} is no CrammedBERT: it lacks its word embedding or its first layer")
    sizes = {
        "vocab_size": len(embedding),
        "hidden_size": embedding.shape[1],
        "num_hidden_layers": num_layers(tensors, "model.layers."),
        "intermediate_size": len(inner),
    }
    of_classifier = {"classifier_size": "classifier.dense.weight", "num_labels": "classifier.out_proj.weight"}
    return {**sizes, **{field: len(tensors[key]) for field, key in of_classifier.items() if key in tensors}}


def _fields(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of the configuration that options of the published program set."""
    check_options(options, {option: (value, value) for option, value in _MUST_BE.items()}, name)
    dropout = options.get("hidden_dropout_prob")
    if options.get("embedding.dropout_prob", dropout) != dropout:
        raise ValueError(
            f"{name} drops {dropout} of what its layers add and another part of its embeddings; make both equal"
        )
    fields = {field: options[option] for field, option in _FIELDS.items() if options.get(option) is not None}
    pooler = options.get("classification_head.pooler", "avg")
    if pooler not in _POOLERS:
        raise ValueError(f"{name} pools by {pooler!r}, and this model by {' or '.join(_POOLERS)} only")
    return {**fields, "classifier_pooling": _POOLERS[pooler]}


def _flat(options: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return options of groups by their names, such as "attention.dropout_prob"."""
    flat = {}
    for name, value in options.items():
        flat |= _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return flat
