import os

import pytest
import torch

from hf_targets.backbones.published import StandIn, read_training_checkpoint


class Hostile:
    """What a checkpoint must not do when it is read."""

    def __init__(self, function, *arguments):
        self.made_of = function, arguments

    def __reduce__(self):
        return self.made_of


def test_a_function_that_a_file_names_is_never_called(tmp_path):
    ran, before = tmp_path / "ran", set(torch.serialization.get_safe_globals())
    torch.save({"a": Hostile(exec, f"open({str(ran)!r}, 'w')"), "b": torch.ones(2)}, tmp_path / "a.ckpt")
    content = read_training_checkpoint(tmp_path / "a.ckpt")
    assert isinstance(content["a"], StandIn) and torch.equal(content["b"], torch.ones(2))
    torch.save({"a": Hostile(os.system, f"touch {ran}")}, tmp_path / "b.ckpt")
    with pytest.raises(ValueError, match="cannot be read without running code") as error:
        read_training_checkpoint(tmp_path / "b.ckpt")
    assert "weights_only" not in str(error.value), "nobody is told how to run it"
    assert not ran.exists()
    assert set(torch.serialization.get_safe_globals()) == before, "what is let in is let in for this file alone"


@pytest.mark.parametrize("kept", [0, 5, 100, -10])
def test_a_checkpoint_cut_short_is_refused_with_the_way_out(kept, tmp_path):
    file = tmp_path / "a.ckpt"
    torch.save({"state_dict": {"a": torch.ones(50)}}, file)
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"or is not whole .*save its `state_dict` and `ema` alone"):
        read_training_checkpoint(file)


def test_a_file_of_something_else_is_refused(tmp_path):
    torch.save([torch.ones(1)], tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match="must hold a checkpoint by name, got a list"):
        read_training_checkpoint(tmp_path / "a.ckpt")
