"""The state of a phrase encoder: a summary that notices changes in a process, and fingerprints for all processes."""

import hashlib
import json
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor, nn

from hf_targets.backbones.weight_access import execution_device, whole_state_dict
from hf_targets.backbones.weight_hash import add_weights, model_settings
from hf_targets.phrases.encoder import PhraseEncoder


@dataclass(frozen=True)
class EncoderVersion:
    """A summary of an encoder's state that differs after the encoder has changed, and is cheap to compute.

    Fused optimizers and writes to `parameter.data` do not increase torch's version counters. A few values of each
    parameter are compared to notice an optimizer's step; a write to a few rows of `.data` may pass unnoticed.

    Attributes:
        state: The tensors, their version counters, what peft's layers add, and the autocast type.
        samples: A few values of each parameter.
    """

    state: tuple
    samples: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, encoder: PhraseEncoder) -> "EncoderVersion":
        """Return the current version of an encoder."""
        parameters = list(encoder.parameters())
        device = parameters[0].device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        written = [(id(p), p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters]
        samples = torch.cat([p.detach().flatten()[:: max(1, p.numel() // 16)] for p in parameters])
        # with peft, the projection is the active adapter's
        return cls((autocast, id(encoder.input_projection), _adapters_of(encoder), *written), samples)

    def equals(self, other: "EncoderVersion") -> bool:
        """Return whether both versions give the same embeddings."""
        return self.state == other.state and torch.equal(self.samples, other.samples)


def encoder_fingerprint(encoder: PhraseEncoder) -> str:
    """Return a SHA-256 of the encoder's parameters, which is the same in every process that loads them."""
    digest = hashlib.sha256()
    add_weights(digest, whole_state_dict(encoder))
    return digest.hexdigest()


def embedding_fingerprint(encoder: PhraseEncoder) -> str:
    """Return a hash of everything that determines an encoder's embeddings; it is the same in every process.

    These are the weights, the configuration, the adapters in use, the type of device, and the active autocast type.
    GPT-2's takes 50 ms.
    """
    device = execution_device(encoder).type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    told = [device, str(autocast), model_settings(encoder.transformer.config)]
    if adapters := _adapters_of(encoder):
        told.append(adapters)
    digest = xxhash.xxh3_128(json.dumps(told, sort_keys=True, default=str).encode())
    for part in _parts(encoder):
        add_weights(digest, {} if part is None else part.state_dict())
    return digest.hexdigest()


def _parts(encoder: PhraseEncoder) -> tuple[nn.Module | None, ...]:
    """Return the parts of an encoder; if peft has a copy of it, those of the copy in use."""
    return encoder.transformer, encoder.input_projection, encoder.output_projection


def _adapters_of(encoder: PhraseEncoder) -> tuple:
    """Return what each layer of peft adds to the encoder: the adapters in use, those merged, and their scales."""
    return tuple(
        (
            name,
            bool(layer.disable_adapters),
            str(layer.active_adapters),
            str(getattr(layer, "merged_adapters", None)),
            str(getattr(layer, "scaling", None)),
        )
        for part in _parts(encoder)
        for name, layer in (() if part is None else part.named_modules())
        # looked up in the class, which is faster; a method of Transformers' models has that name
        if isinstance(getattr(type(layer), "disable_adapters", None), property)
    )
