"""Where a model's weights lie in memory, which decides the last bits of its outputs on some processors.

PyTorch allocates memory at multiples of 64 bytes. A loaded safetensors file stays in a memory map, where its weights
follow a header of any length: they begin, for example, at 24 modulo 64. Some kernels add the terms of a matrix product
in another order there. So a saved model and the model loaded from its files have equal weights, and on such a processor
outputs that differ in the last bits. Tests therefore compare weights bit for bit, and outputs bit for bit only between
models whose weights PyTorch has allocated: they pass a loaded model through `realigned`.

Most processors do not show a test that forgets this. These variables make one of x86 show it:

    HF_TARGETS_MISALIGN=24 MKL_ENABLE_INSTRUCTIONS=SSE4_2 make test

The first is the offset modulo 64 at which the tests write weights into files. The second makes MKL choose kernels that
depend on the offset.
"""

from pathlib import Path

import safetensors.numpy
import safetensors.torch
from torch import nn


def realigned(model: nn.Module):
    """Return the model after copying its weights to memory that PyTorch allocates; values and ties stay."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    return model


def misalign_files(offset: int) -> None:
    """Make safetensors write weights at `offset` modulo 64, a multiple of 8, from now on.

    The format allows spaces behind the header, so that the files hold the same as before.
    """

    def pad(content: bytes) -> bytes:
        size = int.from_bytes(content[:8], "little")
        spaces = (offset - 8 - size) % 64
        return (size + spaces).to_bytes(8, "little") + content[8 : 8 + size] + b" " * spaces + content[8 + size :]

    def padded(serialize):
        return lambda *args, **kwargs: pad(serialize(*args, **kwargs))

    def padding(serialize_file):
        def write(tensors, filename, metadata=None):
            serialize_file(tensors, filename, metadata)
            Path(filename).write_bytes(pad(Path(filename).read_bytes()))

        return write

    for module in (safetensors.torch, safetensors.numpy):
        module.serialize, module.serialize_file = padded(module.serialize), padding(module.serialize_file)
