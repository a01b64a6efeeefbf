import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM

from tests.memory import misalign_files, realigned
from tests.tiny_models import make_model


@pytest.fixture
def misaligned(monkeypatch):
    """Return `misalign_files`, whose effect ends with the test."""
    for module in (safetensors.torch, safetensors.numpy):
        for name in ("serialize", "serialize_file"):
            monkeypatch.setattr(module, name, getattr(module, name))
    return misalign_files


def positions(model):
    return {tensor.data_ptr() % 64 for tensor in (*model.parameters(), *model.buffers())}


@pytest.mark.parametrize("offset", [0, 24])
def test_a_loaded_model_lies_where_its_file_puts_it_until_it_is_realigned(offset, misaligned, tmp_path):
    misaligned(offset)
    model = make_model("qwen3")  # whose input and output embeddings are tied
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert offset in positions(again)
    assert realigned(again) is again
    assert positions(again) == {0}
    assert again.get_input_embeddings().weight is again.get_output_embeddings().weight
    tensors = model.state_dict()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in again.state_dict().items())


def test_files_are_written_at_the_offset_by_every_function_that_writes_them(misaligned, tmp_path):
    misaligned(40)
    file, tensors, arrays = tmp_path / "file", {"one": torch.arange(5)}, {"one": np.arange(5)}
    safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})
    written = [file.read_bytes(), safetensors.torch.save(tensors), safetensors.numpy.save(arrays)]
    safetensors.numpy.save_file(arrays, file)
    for content in (*written, file.read_bytes()):
        assert (8 + int.from_bytes(content[:8], "little")) % 64 == 40
        assert safetensors.torch.load(content)["one"].tolist() == [0, 1, 2, 3, 4]
    with safetensors.safe_open(file, "pt") as opened:
        assert opened.metadata() is None
