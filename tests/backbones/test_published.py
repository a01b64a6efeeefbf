import json
import os
import pickle
import re

import pytest
import torch
from safetensors.torch import save_file

from hf_targets.backbones.published import StandIn, find_checkpoint, read_tensors, read_training_checkpoint

FILES = ("model.safetensors", "pytorch_model.bin")
TENSORS = {"one": torch.arange(6.0).view(2, 3), "two": torch.tensor([1, 2])}


def save(file, tensors=TENSORS):
    save_file(tensors, file) if file.suffix == ".safetensors" else torch.save(tensors, file)
    return file


def test_the_first_of_the_files_that_is_there_is_found_with_its_config(tmp_path):
    second = save(tmp_path / FILES[1])
    assert find_checkpoint(tmp_path, FILES, {}) == (second, {})
    (tmp_path / "config.json").write_text(json.dumps({"größe": 3}, ensure_ascii=False), encoding="utf-8")
    first = save(tmp_path / FILES[0])
    assert find_checkpoint(tmp_path, FILES, {}) == (first, {"größe": 3})
    assert find_checkpoint(str(tmp_path), FILES[1:], {}) == (second, {"größe": 3})


def test_a_file_of_any_name_is_itself_with_the_config_beside_it(tmp_path):
    file = save(tmp_path / "weights.bin")
    assert find_checkpoint(file, FILES, {}) == (file, {})
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert find_checkpoint(str(file), FILES, {}) == (file, {"a": 1})


def test_a_folder_in_a_checkpoint_is_found_by_subfolder(tmp_path):
    (tmp_path / "last").mkdir()
    file = save(tmp_path / "last" / FILES[0])
    (tmp_path / "last" / "config.json").write_text('{"a": 1}')
    assert find_checkpoint(tmp_path, FILES, {"subfolder": "last"}) == (file, {"a": 1})


def test_a_folder_without_weights_and_arguments_of_no_hub_are_refused(tmp_path):
    for missing in (tmp_path / "none.bin", "./none/model.bin", "a/b/c"):
        with pytest.raises(ValueError, match=rf"there is no file or folder at {re.escape(str(missing))}; give the"):
            find_checkpoint(missing, FILES, {})
    with pytest.raises(ValueError, match=r"holds none of model.safetensors, pytorch_model.bin; give the file"):
        find_checkpoint(tmp_path, FILES, {})
    with pytest.raises(ValueError, match=r"no such argument: branch, tag; there are cache_dir, .*revision"):
        find_checkpoint(tmp_path, FILES, {"tag": "a", "branch": "b"})


@pytest.mark.parametrize("text", ['{"a": 1', "[" * 100_000], ids=["cut", "deep"])
def test_a_configuration_that_is_cut_short_or_too_deep_is_told_by_name(text, tmp_path):
    save(tmp_path / FILES[0])
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=rf"{tmp_path / 'config.json'} is not whole JSON"):
        find_checkpoint(tmp_path, FILES, {})


@pytest.mark.parametrize("name", FILES)
def test_tensors_are_read_as_they_were_written(name, tmp_path):
    tensors = read_tensors(save(tmp_path / name))
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[key], TENSORS[key]) for key in TENSORS)


@pytest.mark.parametrize("kept", [0, 100, -10])
def test_a_file_cut_short_is_refused(kept, tmp_path):
    for name, read in (*((name, read_tensors) for name in FILES), ("a.ckpt", read_training_checkpoint)):
        file = save(tmp_path / name)
        file.write_bytes(file.read_bytes()[:kept])
        with pytest.raises(ValueError, match=r"not (a )?whole"):
            read(file)


class Code:
    """What a checkpoint must not do when it is read."""

    def __init__(self, function=exec, *arguments):
        self.made_of = function, arguments or ("raise SystemExit('the checkpoint ran code')",)

    def __reduce__(self):
        return self.made_of


def test_no_code_of_a_file_is_run(tmp_path):
    file = save(tmp_path / "pytorch_model.bin", {"one": Code()})
    with pytest.raises(ValueError, match="is not a whole file of tensors"):
        read_tensors(file)
    file.write_bytes(pickle.dumps({"one": Code()}, 2))
    with pytest.raises(ValueError, match="is not a whole file of tensors") as error:
        read_tensors(file)
    assert "weights_only" not in str(error.value), "nobody is told how to run it"


@pytest.mark.parametrize(("content", "kind"), [([torch.ones(1)], "list"), ({"a": {"b": torch.ones(1)}}, "dict")])
def test_a_file_that_holds_something_else_is_refused(content, kind, tmp_path):
    with pytest.raises(ValueError, match=f"tensors by name and nothing else, got a {kind}"):
        read_tensors(save(tmp_path / "pytorch_model.bin", content))


def test_a_function_that_a_file_names_is_never_called(tmp_path):
    ran, before = tmp_path / "ran", set(torch.serialization.get_safe_globals())
    torch.save({"a": Code(exec, f"open({str(ran)!r}, 'w')"), "b": torch.ones(2)}, tmp_path / "a.ckpt")
    content = read_training_checkpoint(tmp_path / "a.ckpt")
    assert isinstance(content["a"], StandIn) and torch.equal(content["b"], torch.ones(2))
    torch.save({"a": Code(os.system, f"touch {ran}")}, tmp_path / "b.ckpt")
    with pytest.raises(ValueError, match="cannot be read without running code") as error:
        read_training_checkpoint(tmp_path / "b.ckpt")
    assert "weights_only" not in str(error.value), "nobody is told how to run it"
    assert not ran.exists()
    assert set(torch.serialization.get_safe_globals()) == before, "what is let in is let in for this file alone"
