"""Files that tests of corpora and of pairs write."""

import gzip
import lzma

import pytest


@pytest.fixture
def save(tmp_path):
    """Return a function that writes a text or bytes below the test's folder, packed as the name ends."""

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = text if isinstance(text, bytes) else text.encode(errors="surrogateescape")
        path.write_bytes({".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)(data))
        return path

    return write
