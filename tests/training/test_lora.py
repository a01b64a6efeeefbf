import pytest
import torch

from hf_targets.training.lora import add_lora
from tests.tiny_models import make_backbone, make_dynamic_model, make_model


def adapters(model) -> dict[str, torch.Tensor]:
    tensors = {name: tensor for name, tensor in model.state_dict().items() if ".lora_A." in name}
    return {name.replace("backbone.", ""): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("make", [make_model, make_dynamic_model])
@pytest.mark.filterwarnings("error")
def test_adapters_begin_alike_with_and_without_new_parts_and_leave_the_random_state(make):
    torch.manual_seed(5)
    plain = adapters(add_lora(make_backbone("llama"), 2))
    base = make("llama")
    torch.manual_seed(0)  # the seed that the tiny plain model has set
    torch.rand(7)
    state = torch.get_rng_state()
    found = adapters(add_lora(base, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert found.keys() == plain.keys() and found
    assert all(torch.equal(tensor, plain[name]) for name, tensor in found.items())
