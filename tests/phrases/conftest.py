import pytest

from hf_targets.phrases import embedding_cache


@pytest.fixture
def encoded(monkeypatch):
    """The number of phrases that each call of the encoder encoded."""
    counts, encode = [], embedding_cache.encode

    def counting(encoder, keys):
        counts.append(len(keys))
        return encode(encoder, keys)

    monkeypatch.setattr(embedding_cache, "encode", counting)
    return counts
