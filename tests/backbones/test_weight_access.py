import torch
from accelerate import cpu_offload
from torch import nn
from torch.nn import functional as F

from hf_targets.backbones.weight_access import call_inside, execution_device, is_readable, whole_state_dict

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
