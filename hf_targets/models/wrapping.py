"""What all models around a backbone do in the same way."""

# pyright: reportAttributeAccessIssue=false
# (a mixin: the backbone and PreTrainedModel's methods are its model's)

import inspect
import logging
from os import PathLike
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from hf_targets.models.backbone import output_embedding
from hf_targets.models.checkpoint import HUB_ARGUMENTS
from hf_targets.models.weight_access import execution_device, is_readable
from hf_targets.models.weight_files import broken_files_named

logger = logging.getLogger(__name__)

LOADING_ARGUMENTS = (
    *HUB_ARGUMENTS,
    "attn_implementation",
    "device_map",
    "dtype",
    "max_memory",
    "offload_buffers",
    "offload_folder",
    "quantization_config",
    "torch_dtype",
    "trust_remote_code",
    "use_safetensors",
    "variant",
)
"""What `from_base` passes on to `from_pretrained` where it is given a name or a path."""


class _DynamicCacheSupport:
    """`_supports_default_dynamic_cache` of a wrapper: the backbone's own for a model, and True for the class."""

    def __get__(self, model: Any, owner: type) -> Any:
        return (lambda: True) if model is None else model.backbone._supports_default_dynamic_cache


class WrapsBackbone:
    """A model with a `backbone`, a causal language model, whose embeddings, cache and attention are its own."""

    new_part: str
    """Name of the module that the target adds."""
    trained_by: str
    """Name of the trainer that trains all of the model."""
    base_model_prefix = "backbone"
    accepts_loss_kwargs = True  # the loss is divided by num_items_in_batch
    supports_gradient_checkpointing = True
    _supports_sdpa = True  # what we add has no attention of its own kind: each Transformer inside answers for itself
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _supports_default_dynamic_cache = _DynamicCacheSupport()

    @property
    def base_model(self) -> nn.Module:
        """The backbone without its output embedding: what makes the hidden states that all predictions are read from.

        `base_model_prefix` names the backbone itself, whose weights have that prefix in a checkpoint.
        """
        return self.backbone.base_model

    def train(self, mode: bool = True) -> Self:
        """Set training mode; a backbone with nothing to train stays in evaluation mode, in which it will decode."""
        super().train(mode)
        if mode and not any(parameter.requires_grad for parameter in self.backbone.parameters()):
            self.backbone.eval()
        return self

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the backbone's input embedding."""
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the backbone's input embedding."""
        self.backbone.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Linear:
        """Return the backbone's output embedding."""
        return output_embedding(self.backbone)

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the backbone's output embedding."""
        self.backbone.set_output_embeddings(new_embeddings)

    def add_model_tags(self, tags: list[str] | str) -> None:
        """Tag the model, as TRL's trainers do with the model that they will train.

        Raises:
            ValueError: If that is SFTTrainer: it reads hidden states and output matrix itself, for the loss of the next
                token alone, and would pass by what the target adds.
        """
        names = {tags} if isinstance(tags, str) else set(tags)
        new_part = getattr(self, self.new_part)
        if {"trl", "sft"} <= names:
            raise ValueError(
                f"TRL's SFTTrainer computes the loss of the next token alone, and would never train this model's "
                f"{self.new_part}; use {self.trained_by} of hf_targets, or give SFTTrainer model.backbone"
            )
        if "trl" in names and any(parameter.requires_grad for parameter in new_part.parameters()):
            logger.warning(
                "TRL trains the backbone of %s and leaves its %s as they are: train them again afterwards, with %s",
                type(self).__name__,
                self.new_part,
                self.trained_by,
            )
        super().add_model_tags(tags)  # pyright: ignore

    def _validate_model_kwargs(self, model_kwargs: dict[str, Any]) -> None:
        """Check what `generate` was given, as Transformers does: segments and embeddings, which some do not take."""
        takes = {
            "token_type_ids": self.backbone.base_model.forward,
            "inputs_embeds": self.backbone.prepare_inputs_for_generation,
        }
        for name, function in takes.items():
            if model_kwargs.get(name) is not None and name not in inspect.signature(function).parameters:
                raise ValueError(f"{type(self.backbone).__name__} does not generate from {name}; leave it out")
        super()._validate_model_kwargs(model_kwargs)  # pyright: ignore


def load_base(
    base: PreTrainedModel | str | PathLike, backbone_kwargs: dict[str, Any] | None, name: str = "base"
) -> PreTrainedModel:
    """Return the causal language model that this is, or is the name or path of.

    Raises:
        ValueError: If it is neither, or a file of it is cut short.
    """
    if isinstance(base, str | PathLike):
        with broken_files_named(base, backbone_kwargs or {}):
            return AutoModelForCausalLM.from_pretrained(base, **(backbone_kwargs or {}))
    if not isinstance(base, PreTrainedModel):
        raise ValueError(f"{name} must be a Transformers model, its name or its path, got {type(base).__name__}")
    return base


def check_loading(loading: dict[str, Any], *sources: Any) -> None:
    """Check that there is something to load where it is said how.

    Raises:
        ValueError: If all of the sources are models, or None.
    """
    if loading and not any(isinstance(source, str | PathLike) for source in sources):
        raise ValueError(
            f"{', '.join(loading)}: this says how a model is loaded, and the base is a model already; load it that way "
            "yourself, or give its name"
        )


def split_fields(
    config_class: type, given: dict[str, Any], allowed: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return those of the arguments of `from_base` that are fields of the configuration, and those for loading.

    Args:
        allowed: The fields that a user may choose.
    Raises:
        ValueError: If one is neither, with the fields that there are.
    """
    fields = {name: value for name, value in given.items() if name in allowed}
    loading = {name: value for name, value in given.items() if name in LOADING_ARGUMENTS}
    if unknown := given.keys() - fields.keys() - loading.keys():
        raise ValueError(
            f"no such field of {config_class.__name__}: {', '.join(sorted(unknown))}; there are {', '.join(allowed)}"
        )
    return fields, loading


def backbone_inputs(**optional: Any) -> dict[str, Any]:
    """Return those of the arguments that are not None: a backbone need not know the others."""
    return {name: value for name, value in optional.items() if value is not None}


def check_copyable(base: PreTrainedModel) -> None:
    """Check that a model's weights are here, to be copied.

    Raises:
        ValueError: If accelerate has offloaded them.
    """
    if not is_readable(base) and execution_device(base).type != "meta":
        raise ValueError(
            f"the phrase encoder begins as a copy of the base model, and weights of {type(base).__name__} are "
            "offloaded; give phrase_encoder=, or load the base model whole and offload the model made of it"
        )


def keep_weights(*models: PreTrainedModel) -> None:
    """Mark models as initialised, so that a wrapper's `post_init` leaves their weights as they are."""
    for model in models:
        for module in model.modules():
            module._is_hf_initialized = True  # pyright: ignore[reportArgumentType]


def check_count(num_items_in_batch: Tensor | int | None, *, has_labels: bool) -> None:
    """Check that a count of targets comes with the labels that it counts.

    Trainer takes the labels away, and leaves the count, to compute a loss of its own from the logits: for its
    `label_smoothing_factor` or a `compute_loss_func`. That loss would train the next token alone.

    Raises:
        ValueError: If it does not.
    """
    if num_items_in_batch is not None and not has_labels:
        raise ValueError(
            "num_items_in_batch counts labels, and there are none: Trainer keeps them for label_smoothing_factor or "
            "compute_loss_func, which would train only a part of this model. Use this model's own trainer of "
            "hf_targets, or set label_smoothing_factor=0; for a loss of your own also set "
            "model.accepts_loss_kwargs=False"
        )


def check_shapes(input_ids: Tensor | None, inputs_embeds: Tensor | None, **labels: Tensor | None) -> Tensor:
    """Return the input, once it is certain that there is a token, and that all labels are shaped as the input is.

    Raises:
        ValueError: If not.
    """
    given = inputs_embeds if input_ids is None else input_ids
    if given is None or given.shape[0] == 0 or given.shape[1] == 0:
        shape = None if given is None else tuple(given.shape)
        raise ValueError(f"input_ids or inputs_embeds must hold at least one token, got shape {shape}")
    for name, ids in labels.items():
        if ids is not None and ids.shape != given.shape[:2]:
            hint = "they are unshifted: the model shifts them" if name == "labels" else "each at its own position"
            raise ValueError(
                f"{name} must have the shape of input_ids, {tuple(given.shape[:2])}, got {tuple(ids.shape)}; {hint}"
            )
    check_integers(input_ids=input_ids, **labels)
    return given


def check_integers(**named: Tensor | None) -> None:
    """Check that tensors of these names, where there are any, hold token ids.

    Raises:
        ValueError: If they are not of integers.
    """
    for name, ids in named.items():
        if ids is not None and ids.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"{name} must be token ids, integers, got {ids.dtype}")


def check_ids(ids: Tensor, vocab_size: int, name: str, ignored: int | None = None, hint: str = "") -> None:
    """Check that ids are of the vocabulary; on a CPU alone, as elsewhere the look would wait for the device.

    Args:
        ignored: A label that is not a target.
        hint: What to do, at the end of the error.
    Raises:
        ValueError: If one is not.
    """
    if ids.device.type != "cpu" or torch.compiler.is_compiling():
        return
    lowest, highest = ids.aminmax()
    if lowest >= 0 and highest < vocab_size:
        return
    wrong = ids[((ids < 0) | (ids >= vocab_size)) & (ids != ignored if ignored is not None else True)]
    if wrong.numel():
        hint = hint or "use the model's own tokenizer, or resize_token_embeddings"
        raise ValueError(
            f"{name} must be in [0, {vocab_size - 1}], the model's vocabulary, got {wrong[0].item()}; {hint}"
        )


def check_segments(token_type_ids: Tensor | None) -> None:
    """Check that a tokenizer's segments are all the first one, for a model that knows no other; on a CPU alone.

    Raises:
        ValueError: If they are not.
    """
    if token_type_ids is None or not token_type_ids.is_cpu or torch.compiler.is_compiling():
        return
    if token_type_ids.any():
        raise ValueError(
            f"token_type_ids must be 0, as this model knows no second segment, got {int(token_type_ids.max())}; give "
            "the tokenizer one text a row"
        )
