import pytest
import torch

from tests.choices import NUM_SEEDS, UnclearChoiceError, assert_clear, on_clear_draws, restart_draws

NEAR, CLEAR = torch.tensor([[3.0, 1.0, 2.0], [1.0, 2.0, 2.000001]]), torch.tensor([[3.0, 1.0, 2.0], [1.0, 2.0, 2.1]])


@pytest.mark.usefixtures("clear_choices")
@pytest.mark.parametrize(
    "choose",
    [lambda scores: torch.argmax(scores, dim=-1), lambda scores: scores.argmax(1), lambda scores: scores.topk(1)],
)
def test_a_choice_between_near_candidates_is_refused(choose):
    choose(CLEAR)
    with pytest.raises(AssertionError, match="apart may change positions"):
        choose(NEAR)


@pytest.mark.usefixtures("clear_choices")
def test_a_sample_that_rounding_may_change_is_refused_and_others_are_what_they_were():
    probabilities = torch.tensor([[0.1, 0.2, 0.7], [0.3, 0.4, 0.3]])
    drawn = torch.multinomial(probabilities, 1)
    waits = torch.empty(2, 3).exponential_(generator=torch.Generator().manual_seed(0))
    assert torch.equal(drawn[:, 0], (probabilities / waits).max(dim=1).indices)
    with pytest.raises(AssertionError, match="may change positions"):
        torch.multinomial(waits, 1, generator=torch.Generator().manual_seed(0))


def test_the_order_of_the_chosen_and_ties_of_what_cannot_be_chosen_are_no_matter():
    assert_clear(torch.tensor([2.0, 2.0, 1.0, 1.0]), 2)
    assert_clear(torch.tensor([2.0, 1.0, -1e9, -1e9, -torch.inf, -torch.inf]), 3)
    with pytest.raises(AssertionError):
        assert_clear(torch.ones(3), 2)


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
