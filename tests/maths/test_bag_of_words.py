"""The loss of bags of words as the formula says, word by word."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.maths.losses import bag_of_words_losses


def by_hand(logits, targets):
    losses = []
    for scores, words in zip(logits.tolist(), targets.tolist(), strict=True):
        kept = [(position, word) for position, word in enumerate(words) if word != -100]
        total = 0.0
        for word in range(logits.shape[2]):
            score = sum(scores[position][word] for position, _ in kept)
            if word in {word for _, word in kept}:
                total += math.log1p(math.exp(-score))
        losses.append(total)
    return torch.tensor(losses, dtype=torch.float64)


@given(st.integers(0, 2**31 - 1))
def test_the_loss_is_the_formula(seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 5, 7, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 7, (3, 5), generator=generator)
    targets[torch.rand(3, 5, generator=generator) < 0.4] = -100
    found = bag_of_words_losses(logits, targets)
    torch.testing.assert_close(found, by_hand(logits, targets), rtol=1e-10, atol=1e-10)


def test_a_word_that_is_said_twice_counts_once_and_order_does_not_count():
    logits = torch.randn(1, 3, 5, generator=torch.Generator().manual_seed(0))
    one, two, three = (bag_of_words_losses(logits, torch.tensor([ids])) for ids in ([1, 2, 2], [2, 1, 1], [1, 2, 1]))
    assert torch.equal(one, two) and torch.equal(two, three)


def test_half_precision_is_summed_in_full():
    logits = torch.randn(2, 40, 9, generator=torch.Generator().manual_seed(0)).bfloat16()
    targets = torch.zeros(2, 40, dtype=torch.long)
    torch.testing.assert_close(bag_of_words_losses(logits, targets), bag_of_words_losses(logits.float(), targets))
