"""Checkpoints in the layout of the published MDLM: a missing or extra tensor is an error."""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# (a mixin: the model defines the backbone and the methods of PreTrainedModel)

import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from hf_targets.backbones.checkpoint import check_tensors
from hf_targets.backbones.published import chosen_dtype, find_checkpoint, read_tensors, read_training_checkpoint
from hf_targets.masked_diffusion.configuration import MdlmConfig
from hf_targets.masked_diffusion.layers import rotary_frequencies
from hf_targets.masked_diffusion.published_settings import (
    check_kinds,
    known_mask,
    settings_of_config,
    settings_of_training,
    warn_of_defaults,
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
_CURVE = "backbone.curves."  # a curve adds them; the published model has none


class PublishedLayout:
    """`from_published` and `to_published` of a masked diffusion model.

    The published tensors have the same names as ours, except two. `backbone.vocab_embed.embedding` is renamed.
    `backbone.rotary_emb.inv_freq` is computed here, and must be that of rotary positions of base 10,000.
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

        Sizes follow from the tensors. The number of heads (unless there are rotary frequencies), positions, dropout,
        time conditioning, noise and the mask's id come from the `hyper_parameters` of a training checkpoint, else from
        config.json. If neither has them, time conditioning is off and noise log-linear, with a warning for a training
        checkpoint. `config` overrides all of these, with a warning if it changes anything but dropout. No code of the
        checkpoint is run.

        Args:
            source: A name on the Hub, a folder, a file, or a state dict; or a checkpoint of the training program: a
                `.ckpt` file or the output of `torch.load` for it. The `shadow_params` of its `ema` (a list without
                names) are used, in the order of the parameters; without them its raw weights, with a warning.
            hub: Options of the Hub: `revision`, `token`, `cache_dir`, `subfolder` ...
            config: Fields of `MdlmConfig` to set, such as `curve` or `dropout`, and `dtype` as `from_pretrained` takes
                it ("auto": that of the checkpoint; None: float32). K > 1 curves have new parameters, which
                are random. `mask_token_id` is needed if the checkpoint does not contain it, unless it has the 50,258
                rows of the published OpenWebText model.
        Raises:
            ValueError: If the file cannot be read; if a tensor is missing, left over or of another shape; if the mask
                or the number of heads is unknown; or if the model was trained with an unsupported option.
        """
        dtype = config.pop("dtype", None)
        chosen_dtype(dtype)
        if unknown := config.keys() - MdlmConfig.__dataclass_fields__.keys():
            raise ValueError(f"no such field of MdlmConfig: {', '.join(sorted(unknown))}")
        if not isinstance(source, str | PathLike | Mapping):
            raise ValueError(f"source must be a name, a path or a state dict, got {type(source).__name__}")
        name, published = "the state dict", {}
        content = source
        if not isinstance(source, Mapping):
            name = str(source)
            file, published = find_checkpoint(source, _FILES, hub or {})
            content = _read(file)
        assert isinstance(content, Mapping)
        trained = settings_of_training(content.get("hyper_parameters"), name)
        saved = _merged(settings_of_config(published, name), trained)
        tensors = published_tensors(content, name)
        if config.get("mask_token_id") is None:  # None means not given, so the checkpoint's id is used
            config.pop("mask_token_id", None)
        if is_training_checkpoint(content):
            warn_of_defaults({**saved, **config}, name)
        model = cls(MdlmConfig(**_fields(sizes_of(tensors), saved, config, name)))
        renamed = {_OUR_EMBEDDING if key == EMBEDDING else key: tensor for key, tensor in tensors.items()}
        _check_frequencies(renamed.pop(FREQUENCIES, None), model.config, name)
        shapes = {key: tensor.shape for key, tensor in model.state_dict().items() if not key.startswith(_CURVE)}
        check_tensors(name, renamed, shapes)
        model.load_state_dict(renamed, strict=False)
        return model.to(dtype=chosen_dtype(dtype, renamed) or model.dtype).eval()

    def to_published(self) -> dict[str, Tensor]:
        """Return a state dict with the names and shapes of the published layout.

        Raises:
            ValueError: If the model is folded, or has the parameters of K > 1 curves, which that layout cannot hold.
        """
        if self.config.folded:
            raise ValueError(
                "the published layout has a modulation, and a folded model has no modulation to write; save the model "
                "that it was folded from"
            )
        state = {EMBEDDING if key == _OUR_EMBEDDING else key: value for key, value in self.state_dict().items()}
        if own := [key for key in state if key.startswith(_CURVE)]:
            raise ValueError(f"the published layout cannot hold {', '.join(own)}; save the model with save_pretrained")
        return {**state, FREQUENCIES: _frequencies(self.config)}


def _frequencies(config: MdlmConfig) -> Tensor:
    return rotary_frequencies(config.hidden_size // config.num_attention_heads)


def _check_frequencies(found: Tensor | None, config: MdlmConfig, name: str) -> None:
    if found is None:
        return
    expected = _frequencies(config)
    if found.shape != expected.shape or not torch.allclose(found.float(), expected, rtol=1e-2, atol=1e-6):
        raise ValueError(
            f"{name} has rotary frequencies {tuple(found.shape)} that differ from those of base 10,000 with "
            f"num_attention_heads={config.num_attention_heads}; give the number of heads that it was trained with"
        )


def _read(file: Path) -> dict[str, Any]:
    return read_tensors(file) if file.suffix in (".safetensors", ".bin") else read_training_checkpoint(file)


def _merged(saved: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the first settings, overridden by the others; a new noise schedule drops the sigmas of the first."""
    if "noise_schedule" in other:
        saved = {key: value for key, value in saved.items() if not key.startswith("sigma_")}
    return {**saved, **other}


def _fields(sizes: dict[str, Any], saved: dict[str, Any], given: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of the configuration: as given, else as the checkpoint says, else as its tensors show."""
    check_kinds({key: value for key, value in saved.items() if key not in given}, name)
    other = [key for key in given if key in saved and given[key] != saved[key] and key != "dropout"]
    if other:
        warnings.warn(
            f"{name} was trained with {', '.join(f'{key}={saved[key]!r}' for key in other)}, and you gave "
            f"{', '.join(f'{key}={given[key]!r}' for key in other)}, which is used; leave it out to load the model as "
            "it was trained",
            stacklevel=3,
        )
    fields = _merged({**sizes, **saved}, given)
    if "num_attention_heads" not in fields:
        raise ValueError(
            f"{name} has neither rotary frequencies nor settings with its number of attention heads; give "
            "num_attention_heads, 12 for the published models of width 768"
        )
    if "mask_token_id" not in fields:
        fields["mask_token_id"] = known_mask(sizes["vocab_size"], name)
    return fields
