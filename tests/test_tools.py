"""The tools of tests do what tests rely on: unclear choices, misaligned weights and failed processes are told."""

import pytest
import safetensors.numpy
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM

from tests.choices import NUM_SEEDS, UnclearChoiceError, assert_clear, on_clear_draws, restart_draws
from tests.memory import misalign_files, realigned
from tests.tiny_models import make_model

NEAR, CLEAR = torch.tensor([[3.0, 1.0, 2.0], [1.0, 2.0, 2.000001]]), torch.tensor([[3.0, 1.0, 2.0], [1.0, 2.0, 2.1]])


@pytest.mark.usefixtures("clear_choices")
@pytest.mark.parametrize("choose", [lambda scores: torch.argmax(scores, dim=-1), lambda scores: scores.topk(1)])
def test_a_choice_between_near_candidates_is_refused(choose):
    choose(CLEAR)
    with pytest.raises(UnclearChoiceError):
        choose(NEAR)
    assert_clear(torch.tensor([2.0, 1.0, -1e9, -1e9, -torch.inf, -torch.inf]), 3)  # ties of what cannot be chosen


@pytest.mark.usefixtures("clear_choices")
def test_a_sample_that_rounding_may_change_is_refused_and_others_are_what_they_were():
    probabilities = torch.tensor([[0.1, 0.2, 0.7], [0.3, 0.4, 0.3]])
    drawn = torch.multinomial(probabilities, 1)
    waits = torch.empty(2, 3).exponential_(generator=torch.Generator().manual_seed(0))
    assert torch.equal(drawn[:, 0], (probabilities / waits).max(dim=1).indices)
    with pytest.raises(UnclearChoiceError):
        torch.multinomial(waits, 1, generator=torch.Generator().manual_seed(0))


def test_a_test_that_samples_goes_on_to_the_next_seed_until_its_choices_are_clear():
    drawn = []

    def draw_until(wanted):
        drawn.append(torch.rand(()).item())
        restart_draws()
        assert torch.rand(()).item() == drawn[-1]
        assert_clear(CLEAR if len(drawn) == wanted else NEAR)

    on_clear_draws(draw_until)(3)
    assert len(set(drawn)) == 3
    with pytest.raises(UnclearChoiceError):
        on_clear_draws(draw_until)(0)
    assert len(drawn) == 3 + NUM_SEEDS


def test_a_loaded_model_lies_where_its_file_puts_it_until_it_is_realigned(monkeypatch, tmp_path):
    for module in (safetensors.torch, safetensors.numpy):
        for name in ("serialize", "serialize_file"):
            monkeypatch.setattr(module, name, getattr(module, name))  # restored when the test ends
    misalign_files(24)
    model = make_model("qwen3")  # whose input and output embeddings are tied
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    for number in (24, 0):
        positions = {tensor.data_ptr() % 64 for tensor in (*again.parameters(), *again.buffers())}
        assert number in positions
        realigned(again)
    assert positions == {0} and again.get_input_embeddings().weight is again.get_output_embeddings().weight
    tensors = model.state_dict()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in again.state_dict().items())
