"""Index files that cannot be searched though their checksum is right: the error names the file."""

import hashlib
import json
import re

import pytest
import torch

from hf_targets.retrieval.vector_index import VectorIndex

faiss = pytest.importorskip("faiss")
MODES = [{"mode": "exact"}, {"mode": "ivf", "num_lists": 3, "num_probes": 2}]


def replace_index(folder, content):
    """Put another index file into a folder, with its checksum."""
    file, settings = folder / "vector_index.faiss", folder / "vector_index.json"
    file.write_bytes(content)
    told = json.loads(settings.read_text()) | {"sha256": hashlib.sha256(content).hexdigest()}
    settings.write_text(json.dumps(told))
    return file


@pytest.mark.parametrize("mode", MODES, ids=["exact", "ivf"])
def test_a_file_that_faiss_cannot_read_is_refused_by_name(mode, tmp_path):
    VectorIndex.build(torch.randn(20, 4), **mode).save(tmp_path)
    content = (tmp_path / "vector_index.faiss").read_bytes()
    for damaged in (b"", b"no index", content[:3], content[:30], content[: len(content) // 2], content[:-4]):
        file = replace_index(tmp_path, damaged)
        with pytest.raises(ValueError, match=rf"{re.escape(str(file))} is not a whole FAISS index"):
            VectorIndex.load(tmp_path)
    replace_index(tmp_path, content)
    assert len(VectorIndex.load(tmp_path)) == 20


@pytest.mark.parametrize(
    ("mode", "other"),
    [
        (MODES[0], lambda: faiss.IndexFlatL2(4)),
        (MODES[0], lambda: faiss.IndexHNSWFlat(4, 4, faiss.METRIC_INNER_PRODUCT)),
        (MODES[1], lambda: faiss.IndexIVFFlat(faiss.IndexFlatL2(4), 4, 3)),
        (MODES[1], lambda: faiss.IndexIVFScalarQuantizer(faiss.IndexFlatIP(4), 4, 3, faiss.ScalarQuantizer.QT_8bit)),
    ],
    ids=["distances", "a graph", "lists by distance", "rounded vectors"],
)
def test_an_index_of_another_kind_is_refused_by_name(mode, other, tmp_path):
    vectors = torch.randn(20, 4)
    VectorIndex.build(vectors, **mode).save(tmp_path)
    index = other()
    index.train(vectors.numpy())
    index.add(vectors.numpy())
    file = replace_index(tmp_path, faiss.serialize_index(index).tobytes())
    with pytest.raises(ValueError, match=rf"{re.escape(str(file))} must be an index of inner products"):
        VectorIndex.load(tmp_path)
