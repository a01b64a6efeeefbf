"""The state of a phrase encoder: a summary that notices changes in a process, and fingerprints for all processes."""

import hashlib
import json
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor

from hf_targets.backbones.weight_access import execution_device, whole_state_dict
from hf_targets.phrases.encoder import PhraseEncoder

_NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "architectures", "dtype")


@dataclass(frozen=True)
class EncoderVersion:
    """A summary of an encoder's state that differs after the encoder has changed, and is cheap to compute.

    Fused optimizers and writes to `parameter.data` do not increase torch's version counters. A few values of each
    parameter are compared to notice these changes, too.

    Attributes:
        state: The tensors, their version counters, the active peft adapter, and the autocast type.
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
        return cls((autocast, id(encoder.input_projection), *written), samples)  # with peft, it is the active adapter's

    def equals(self, other: "EncoderVersion") -> bool:
        """Return whether both versions give the same embeddings."""
        return self.state == other.state and torch.equal(self.samples, other.samples)


def encoder_fingerprint(encoder: PhraseEncoder) -> str:
    """Return a SHA-256 of the encoder's parameters, which is the same in every process that loads them."""
    digest = hashlib.sha256()
    for name, tensor in sorted(whole_state_dict(encoder).items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def embedding_fingerprint(encoder: PhraseEncoder) -> str:
    """Return a hash of everything that determines an encoder's embeddings; it is the same in every process.

    These are the weights, the configuration, the type of device, and the active autocast type. GPT-2's takes 50 ms.
    """
    device = execution_device(encoder).type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    config = encoder.transformer.config.to_dict()
    settings = {name: value for name, value in config.items() if name not in _NOT_OF_THE_MODEL}
    digest = xxhash.xxh3_128(json.dumps([device, str(autocast), settings], sort_keys=True, default=str).encode())
    for part in (encoder.transformer, encoder.input_projection, encoder.output_projection):
        for name, tensor in sorted({} if part is None else part.state_dict().items()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
