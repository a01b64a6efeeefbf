"""Checkpoints in the layout of the published MDLM, read and written strictly: every tensor, and no other."""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# (a mixin: the backbone and PreTrainedModel's methods are its model's)

import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import deprecated

from hf_targets.backbones.checkpoint import check_tensors
from hf_targets.backbones.published import find_checkpoint, read_tensors
from hf_targets.backbones.stand_ins import read_training_checkpoint
from hf_targets.masked_diffusion.configuration import MdlmConfig
from hf_targets.masked_diffusion.layers import rotary_frequencies
from hf_targets.masked_diffusion.published_settings import (
    check_kinds,
    known_mask,
    settings_of_config,
    settings_of_training,
    warn_of_untold,
)
from hf_targets.masked_diffusion.published_tensors import (
    EMBEDDING,
    FREQUENCIES,
    is_training_checkpoint,
    published_tensors,
    sizes_of,
)

_OUR_EMBEDDING = "backbone.vocab_embed.weight"
_FILES = ("model.safetensors", "pytorch_model.bin")
_CURVE = "backbone.curves."  # what a curve adds, and the published model has not


class PublishedLayout:
    """`from_published` and `to_published` of a masked diffusion model.

    The published tensors have our names, but for `backbone.vocab_embed.embedding`, and `backbone.rotary_emb.inv_freq`,
    which is computed here and must be that of rotary positions of base 10,000.
    """

    made_by = "from_published"

    @classmethod
    def from_published(
        cls,
        source: str | PathLike | Mapping[str, Any],
        *,
        hub: Mapping[str, Any] | None = None,
        **config: Any,
    ) -> Self:
        """Return a model with the weights of a published checkpoint, such as "kuleshov-group/mdlm-owt".

        Sizes follow from the tensors. Heads (unless there are rotary frequencies), positions, dropout, time
        conditioning, noise and the mask's id are those of a training checkpoint's `hyper_parameters`, else those of
        config.json. Time conditioning is off and noise log-linear where neither tells, with a warning for a training
        checkpoint. `config` goes over all, with a warning where it differs in anything but dropout. No code of the
        checkpoint is run.

        Args:
            source: A name on the Hub, a folder, a file, or a state dict. One of the training program's checkpoints, a
                `.ckpt` file or what `torch.load` gives of it, has `ema`, whose `shadow_params` (a list without names)
                are taken in the order of the parameters; without them its raw weights are taken, with a warning.
            hub: Where in the Hub: `revision`, `token`, `cache_dir`, `subfolder` ...
            config: Fields of `MdlmConfig` to set, such as `curve` or `dropout`. A curve of several (K > 1) has new
                parameters, which are random. `mask_token_id` is needed where the checkpoint does not tell it, unless
                it has the 50,258 rows of the published model of OpenWebText.
        Raises:
            ValueError: If the file cannot be read, a tensor is missing, left over or of another shape, nothing tells
                the mask or the number of heads, or the model was trained with what is not supported.
        """
        name, published = "the state dict", {}
        content = source
        if not isinstance(source, Mapping):
            name = str(source)
            file, published = find_checkpoint(source, _FILES, hub or {})
            content = _read(file)
        assert isinstance(content, Mapping)
        trained = settings_of_training(content.get("hyper_parameters"), name)
        told = _over(settings_of_config(published, name), trained)
        tensors = published_tensors(content, name)
        if config.get("mask_token_id") is None:  # nothing is given: the checkpoint tells it
            config.pop("mask_token_id", None)
        if is_training_checkpoint(content):
            warn_of_untold({**told, **config}, name)
        model = cls(MdlmConfig(**_fields(sizes_of(tensors), told, config, name)))
        ours = {_OUR_EMBEDDING if key == EMBEDDING else key: tensor for key, tensor in tensors.items()}
        _check_frequencies(ours.pop(FREQUENCIES, None), model.config, name)
        shapes = {key: tensor.shape for key, tensor in model.state_dict().items() if not key.startswith(_CURVE)}
        check_tensors(name, ours, shapes)
        model.load_state_dict(ours, strict=False)
        return model.eval()

    @classmethod
    @deprecated("from_original is from_published now")
    def from_original(cls, source: str | PathLike | Mapping[str, Any], **kwargs: Any) -> Self:
        """Return `from_published(source, **kwargs)`."""
        return cls.from_published(source, **kwargs)

    @deprecated("to_original is to_published now")
    def to_original(self) -> dict[str, Tensor]:
        """Return `to_published()`."""
        return self.to_published()

    def to_published(self) -> dict[str, Tensor]:
        """Return a state dict in the published layout, with its names and shapes.

        Raises:
            ValueError: If the model is folded, or has curves of its own parameters (K > 1): that layout has no place
                for them.
        """
        if self.config.folded:
            raise ValueError("a folded model has no modulation to write; save the model that it was folded from")
        state = {EMBEDDING if key == _OUR_EMBEDDING else key: value for key, value in self.state_dict().items()}
        if own := [key for key in state if key.startswith(_CURVE)]:
            raise ValueError(
                f"the published layout has no place for {', '.join(own)}; save the model with save_pretrained"
            )
        return {**state, FREQUENCIES: _frequencies(self.config)}


def _frequencies(config: MdlmConfig) -> Tensor:
    return rotary_frequencies(config.hidden_size // config.num_attention_heads)


def _check_frequencies(found: Tensor | None, config: MdlmConfig, name: str) -> None:
    if found is None:
        return
    expected = _frequencies(config)
    if found.shape != expected.shape or not torch.allclose(found.float(), expected, rtol=1e-2, atol=1e-6):
        raise ValueError(
            f"{name} has other rotary frequencies ({tuple(found.shape)}) than base 10,000 gives with "
            f"num_attention_heads={config.num_attention_heads}; give the number of heads that it was trained with"
        )


def _read(file: Path) -> dict[str, Any]:
    return read_tensors(file) if file.suffix in (".safetensors", ".bin") else read_training_checkpoint(file)


def _over(told: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return settings with others over them; another noise takes nothing of the first."""
    if "noise_schedule" in other:
        told = {key: value for key, value in told.items() if not key.startswith("sigma_")}
    return {**told, **other}


def _fields(sizes: dict[str, Any], told: dict[str, Any], given: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of the configuration: what is given, else told by the checkpoint, else by its tensors."""
    check_kinds({key: value for key, value in told.items() if key not in given}, name)
    other = [key for key in given if key in told and given[key] != told[key] and key != "dropout"]
    if other:
        warnings.warn(
            f"{name} was trained with {', '.join(f'{key}={told[key]!r}' for key in other)}, and "
            f"{', '.join(f'{key}={given[key]!r}' for key in other)} is taken, as given; leave it out to have the model "
            "as it was trained",
            stacklevel=3,
        )
    fields = _over({**sizes, **told}, given)
    if "num_attention_heads" not in fields:
        raise ValueError(
            f"{name} has neither rotary frequencies nor settings that tell its attention heads; give "
            "num_attention_heads, 12 for the published models of width 768"
        )
    if "mask_token_id" not in fields:
        fields["mask_token_id"] = known_mask(sizes["vocab_size"], name)
    return fields
