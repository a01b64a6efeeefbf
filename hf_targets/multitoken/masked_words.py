"""The words of which differences at masked positions are made."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from hf_targets.maths.losses import IGNORED


def following_words(
    labels: Int[Tensor, "batch time"],
    text: Int[Tensor, "batch time"] | None,
    keep: Bool[Tensor, "batch time"],
    num_following: int,
) -> Int[Tensor, "masked following"]:
    """Return each masked word and the words that follow it, -100 where there is none, in the order of the text.

    Args:
        labels: The word at each masked position, -100 elsewhere.
        text: What the model reads; then the n-th word that follows is the n-th in the row. None: it is the n-th of
            those that are masked in the row.
        keep: True at text, false at padding, where there is no word.
        num_following: How many words after the masked one.

    >>> labels = torch.tensor([[-100, 7, -100, 9, -100]])
    >>> text = torch.tensor([[5, 0, 6, 0, 8]])
    >>> following_words(labels, text, torch.ones(1, 5, dtype=torch.bool), 2).tolist()
    [[7, 6, 9], [9, 8, -100]]
    >>> following_words(labels, None, torch.ones(1, 5, dtype=torch.bool), 2).tolist()
    [[7, 9, -100], [9, -100, -100]]
    """
    masked = labels != IGNORED
    rows, columns = masked.nonzero(as_tuple=True)
    if text is None:  # masked words, side by side at the left of their row
        width = int(masked.sum(dim=1).max()) if len(rows) else 0
        words = torch.full((len(labels), width), IGNORED, dtype=labels.dtype, device=labels.device)
        columns = masked.cumsum(dim=1)[masked] - 1
        words[rows, columns] = labels[masked]
    else:
        words = torch.where(masked, labels, text.to(labels.dtype)).masked_fill(~(keep | masked), IGNORED)
    steps = torch.arange(num_following + 1, device=labels.device)
    padded = torch.nn.functional.pad(words, (0, num_following), value=IGNORED)
    return padded[rows[:, None], columns[:, None] + steps]
