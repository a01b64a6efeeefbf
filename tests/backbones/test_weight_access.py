import pytest
import torch
from accelerate import cpu_offload
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import functional as F

from hf_targets.backbones.output_matrix import OutputMap
from hf_targets.backbones.weight_access import (
    call_inside,
    embedding_rows,
    execution_device,
    is_readable,
    whole_state_dict,
)

CPU = torch.device("cpu")


def test_a_call_inside_a_layer_has_its_weights_and_leaves_it_as_it_was():
    layer, hidden = nn.Linear(3, 4), torch.randn(2, 3)
    model, before = nn.Sequential(layer), dict(layer.__dict__)
    expected = layer(hidden)
    assert is_readable(model) and execution_device(model) == CPU
    assert torch.equal(call_inside(layer, lambda weight, bias, given: F.linear(given, weight, bias), hidden), expected)
    assert dict(layer.__dict__) == before
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    cpu_offload(model, execution_device=CPU)
    assert not is_readable(model) and execution_device(model) == CPU
    assert torch.equal(call_inside(layer, lambda weight, bias, given: F.linear(given, weight, bias), hidden), expected)
    assert layer.weight.is_meta
    assert all(torch.equal(tensor, state[name]) for name, tensor in whole_state_dict(model).items())


def test_what_a_hook_sets_on_a_called_layer_is_set_on_the_layer():
    layer, hidden = nn.Linear(3, 4), torch.randn(2, 3)

    def count(module, _) -> None:
        module.num_calls = getattr(module, "num_calls", 0) + 1

    layer.register_forward_pre_hook(count)
    for expected in (1, 2):
        call_inside(layer, lambda weight, bias, given: given @ weight.T, hidden)
        assert layer.num_calls == expected
    layer(hidden)
    assert layer.num_calls == 3


def test_a_layer_is_called_as_it_is_whatever_is_on_it():
    hidden = torch.randn(2, 3)
    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    compiled = nn.Linear(3, 4)
    compiled.compile(backend="eager")
    for layer in (parametrized, compiled):
        inside = call_inside(layer, lambda weight, bias, given: F.linear(given, weight, bias), hidden)
        torch.testing.assert_close(inside, layer(hidden))


@pytest.fixture
def mesh():
    """Return a mesh of one process; what its tensors are mixed with is as much an error as with two."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_a_matrix_that_tensor_parallelism_has_split_gives_the_same_losses_and_gradients(mesh):
    layer = nn.Linear(8, 12)
    split = nn.Linear(8, 12)
    for name, tensor in layer.named_parameters():
        setattr(split, name, nn.Parameter(distribute_tensor(tensor.detach(), mesh, [Shard(0)])))
    hidden, targets = torch.randn(5, 8), torch.arange(5)
    losses = [OutputMap(one).cross_entropy(hidden, targets) for one in (layer, split)]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.sum().backward()
    torch.testing.assert_close(split.weight.grad.full_tensor(), layer.weight.grad)
    torch.testing.assert_close(embedding_rows(split, targets), embedding_rows(layer, targets))
