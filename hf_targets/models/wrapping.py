"""What all models around a backbone do in the same way."""

# pyright: reportAttributeAccessIssue=false
# (a mixin: the backbone and PreTrainedModel's methods are its model's)

from collections.abc import Iterable
from os import PathLike
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from hf_targets.models.backbone import output_embedding
from hf_targets.models.weight_files import broken_files_named


class WrapsBackbone:
    """A model with a `backbone`, a causal language model, whose embeddings, cache and attention are its own."""

    base_model_prefix = "backbone"
    accepts_loss_kwargs = True  # the loss is divided by num_items_in_batch
    supports_gradient_checkpointing = True
    _supports_sdpa = True  # what we add has no attention of its own kind: each Transformer inside answers for itself
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def train(self, mode: bool = True) -> Self:
        """Set training mode; a backbone with nothing to train stays in evaluation mode, in which it will decode."""
        super().train(mode)
        if mode and not any(parameter.requires_grad for parameter in self.backbone.parameters()):
            self.backbone.eval()
        return self

    def get_input_embeddings(self) -> nn.Module:
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

    def _supports_default_dynamic_cache(self) -> bool:
        return self.backbone._supports_default_dynamic_cache()


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


def check_fields(config_class: type, given: Iterable[str], allowed: tuple[str, ...]) -> None:
    """Check that each field is one that a user may choose.

    Raises:
        ValueError: If one is not, with those that there are.
    """
    if unknown := set(given) - set(allowed):
        raise ValueError(
            f"no such field of {config_class.__name__}: {', '.join(sorted(unknown))}; there are {', '.join(allowed)}"
        )


def keep_weights(*models: PreTrainedModel) -> None:
    """Mark models as initialised, so that a wrapper's `post_init` leaves their weights as they are."""
    for model in models:
        for module in model.modules():
            module._is_hf_initialized = True  # pyright: ignore[reportArgumentType]


def check_shapes(input_ids: Tensor | None, inputs_embeds: Tensor | None, labels: Tensor | None) -> Tensor:
    """Return the input, once it is certain that there is a token, and that labels are shaped as the input is.

    Raises:
        ValueError: If not.
    """
    given = inputs_embeds if input_ids is None else input_ids
    if given is None or given.shape[0] == 0 or given.shape[1] == 0:
        shape = None if given is None else tuple(given.shape)
        raise ValueError(f"input_ids or inputs_embeds must hold at least one token, got shape {shape}")
    if labels is not None and labels.shape != given.shape[:2]:
        raise ValueError(
            f"labels must have the shape of input_ids, {tuple(given.shape[:2])}, got {tuple(labels.shape)}; "
            "they are unshifted: the model shifts them"
        )
    check_integers(input_ids=input_ids, labels=labels)
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
