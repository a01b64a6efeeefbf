"""Checkpoints of the published program of CrammedBERT: a missing or extra tensor is an error."""

# pyright: reportCallIssue=false, reportAttributeAccessIssue=false
# (a mixin: the model has the methods of PreTrainedModel)

import logging
import os
import re
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from hf_targets.backbones.checkpoint import check_tensors
from hf_targets.backbones.published import chosen_dtype, find_checkpoint, read_tensors
from hf_targets.crammed_bert.configuration import CrammedBertConfig

logger = logging.getLogger(__name__)

_FILES = ("model.safetensors", "pytorch_model.bin", "model.pth")
_CONFIGS = ("model_config.json", "config.json")
"""Files of options: the program writes the first, and uploads the second."""
_RENAMED = {
    r"encoder\.embedding\.word_embedding\.": "model.embed_tokens.",
    r"encoder\.embedding\.pos_embedding\.scale_factor": "model.embed_positions.scale",
    r"encoder\.embedding\.norm\.": "model.embed_norm.",
    r"encoder\.layers\.(\d+)\.attn\.self_attention\.query_key_value\.": r"model.layers.\1.attention.query_key_value.",
    r"encoder\.layers\.(\d+)\.attn\.dense\.": r"model.layers.\1.attention.dense.",
    r"encoder\.layers\.(\d+)\.ffn\.": r"model.layers.\1.",
    r"encoder\.": "model.",
    r"decoder\.": "lm_head.",
    r"pooler\.dense\.": "classifier.dense.",
    r"head\.": "classifier.out_proj.",
}
"""Beginnings of the names of tensors, as patterns, and ours; the first that matches counts."""
_IGNORED = re.compile(r"(.*\.)?(norm_factor|pos_embedding\.pe|attention\.self_attention\.norm_factor)$")
"""Constants: of the attention's scale, and the table of sines."""
_COMPILED = re.compile(r"^(module\.|_orig_mod\.)+")
_MUST_BE: dict[str, tuple[Any, Any]] = {
    "norm": ("LayerNorm", "LayerNorm"),
    "norm_scheme": ("pre", "pre"),
    "nonlin": ("GELUglu", "GELUglu"),
    "tie_weights": (True, True),
    "decoder_bias": (False, False),
    "skip_head_transform": (True, True),
    "use_bias": (False, False),
    "final_norm": (True, True),
    "ffn_layer_frequency": (1, 1),
    "embedding.pos_embedding": ("scaled-sinusoidal", "scaled-sinusoidal"),
    "embedding.normalization": (True, True),
    "attention.causal_attention": (False, False),
    "attention.qkv_bias": (False, False),
    "attention.rotary_embedding": (False, False),
    "attention.skip_output_projection": (False, False),
    "attention.sequence_op": ("torch-softmax", "torch-softmax"),
    "classification_head.include_ff_layer": (True, True),
    "classification_head.nonlin": ("Tanh", "Tanh"),
}
"""Options of the published program: what they must be, and what they are if the checkpoint does not say."""
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
        dtype = config.pop("dtype", None)
        chosen_dtype(dtype)
        if unknown := config.keys() - CrammedBertConfig.__dataclass_fields__.keys() - {"num_labels", "id2label"}:
            raise ValueError(f"no such field of CrammedBertConfig: {', '.join(sorted(unknown))}")
        name, options = "the checkpoint", {}
        if isinstance(source, Mapping):
            found = dict(source)
        elif isinstance(source, str | os.PathLike):
            name = str(source)
            file, content = find_checkpoint(source, _FILES, hub or {}, configs=_CONFIGS)
            found, options = read_tensors(file), content.get("arch", content)
            if not isinstance(options, Mapping):
                raise ValueError(f"the settings of {name} must have options by name as arch, got {options!r}")
        else:
            raise ValueError(f"source must be a name, a path or tensors by name, got {type(source).__name__}")
        tensors = _renamed(found)
        fields = {**_sizes(tensors, name), **(_fields(options, name) if options else {}), **config}
        if "num_attention_heads" not in fields:
            raise ValueError(
                f"{name} has no options ({' or '.join(_CONFIGS)}), so give num_attention_heads: the published has 12"
            )
        model = cls(CrammedBertConfig(**fields))
        expected = {key: tensor.shape for key, tensor in model.state_dict().items()}
        _settle_outputs(tensors, expected, name)
        check_tensors(name, tensors, expected)
        model.load_state_dict(tensors, strict=False)
        return model.to(dtype=chosen_dtype(dtype, tensors) or model.dtype).eval()


def _settle_outputs(tensors: dict[str, Tensor], expected: dict[str, Any], name: str) -> None:
    """Settle what is above the layers: the output matrix is tied, and a classifier on a pre-trained model is new."""
    output, embedding = tensors.get("lm_head.weight"), tensors["model.embed_tokens.weight"]
    if output is not None and not torch.equal(output, embedding):
        raise ValueError(
            f"{name} has an output matrix that is not its embedding, and this model has one matrix for both; load it "
            "with the program that trained it"
        )
    is_classifier = any(key.startswith("classifier.") for key in tensors)
    if "lm_head.weight" in expected:
        if is_classifier:
            raise ValueError(f"{name} is a classifier; load it with CrammedBertForSequenceClassification")
        tensors["lm_head.weight"] = embedding
    elif not is_classifier:
        tensors.pop("lm_head.weight", None)
        for key in [key for key in expected if key.startswith("classifier.")]:
            del expected[key]
        logger.warning("%s has no classifier, so that of this model is new; fine-tune it", name)


def _renamed(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by our names, without constants."""
    tensors = {}
    for key, tensor in found.items():
        key = _COMPILED.sub("", key)
        if _IGNORED.match(key):
            continue
        for pattern, ours in _RENAMED.items():
            key, count = re.subn(f"^{pattern}", ours, key)
            if count:
                break
        tensors[key] = tensor
    return tensors


def _sizes(tensors: Mapping[str, Tensor], name: str) -> dict[str, Any]:
    """Return the fields of the configuration that follow from the shapes of tensors."""
    embedding, inner = tensors.get("model.embed_tokens.weight"), tensors.get("model.layers.0.dense_in.weight")
    if embedding is None or embedding.dim() != 2 or inner is None:
        raise ValueError(
            f"{name} is no CrammedBERT: it lacks encoder.embedding.word_embedding.weight or "
            "encoder.layers.0.ffn.dense_in.weight"
        )
    numbers = [int(match[1]) for key in tensors if (match := re.match(r"model\.layers\.(\d+)\.", key))]
    sizes = {
        "vocab_size": len(embedding),
        "hidden_size": embedding.shape[1],
        "num_hidden_layers": max(numbers) + 1,
        "intermediate_size": len(inner),
    }
    if "classifier.dense.weight" in tensors:
        sizes["classifier_size"] = len(tensors["classifier.dense.weight"])
    if "classifier.out_proj.weight" in tensors:
        sizes["num_labels"] = len(tensors["classifier.out_proj.weight"])
    return sizes


def _fields(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of the configuration that options of the published program set."""
    for option, (needed, default) in _MUST_BE.items():
        if (value := _option(options, option, default)) != needed:
            raise ValueError(
                f"{name} was built with {option}={value!r}, and this model has {option}={needed!r} only; use the "
                "program that trained it"
            )
    fields = {field: _option(options, option, None) for field, option in _FIELDS.items()}
    of_layers, of_embeddings = (
        _option(options, key, None) for key in ("hidden_dropout_prob", "embedding.dropout_prob")
    )
    if None not in (of_layers, of_embeddings) and of_layers != of_embeddings:
        raise ValueError(
            f"{name} drops {of_embeddings} of its embeddings and {of_layers} of what its layers add, and this model as "
            "much of both; make the two options equal"
        )
    pooler = _option(options, "classification_head.pooler", "avg")
    if pooler not in _POOLERS:
        raise ValueError(f"{name} pools by {pooler!r}, and this model by {' or '.join(map(repr, _POOLERS))} only")
    fields["classifier_pooling"] = _POOLERS[pooler]
    return {field: value for field, value in fields.items() if value is not None}


def _option(options: Mapping[str, Any], name: str, default: Any) -> Any:
    """Return an option by its name, in which a dot leads into a group."""
    for part in name.split("."):
        if not isinstance(options, Mapping) or part not in options:
            return default
        options = options[part]
    return options
