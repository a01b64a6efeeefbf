"""The tokens of which differences at masked positions are made."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from hf_targets.maths.losses import IGNORED


def following_tokens(
    labels: Int[Tensor, "batch time"],
    text: Int[Tensor, "batch time"] | None,
    keep: Bool[Tensor, "batch time"],
    num_following: int,
) -> Int[Tensor, "masked following"]:
    """Return each masked token and the tokens that follow it, -100 where there is none, in the order of the text.

    Args:
        labels: The token at each masked position, -100 elsewhere.
        text: What the model reads; then the n-th token that follows is the n-th in the row. None: it is the n-th of
            those that are masked in the row.
        keep: True at text, false at padding, where there is no token.
        num_following: How many tokens after the masked one.

    >>> labels = torch.tensor([[-100, 7, -100, 9, -100]])
    >>> text = torch.tensor([[5, 0, 6, 0, 8]])
    >>> following_tokens(labels, text, torch.ones(1, 5, dtype=torch.bool), 2).tolist()
    [[7, 6, 9], [9, 8, -100]]
    >>> following_tokens(labels, None, torch.ones(1, 5, dtype=torch.bool), 2).tolist()
    [[7, 9, -100], [9, -100, -100]]
    """
    masked = labels != IGNORED
    rows, columns = masked.nonzero(as_tuple=True)
    if text is None:  # masked tokens, side by side at the left of their row
        width = int(masked.sum(dim=1).max()) if len(rows) else 0
        tokens = torch.full((len(labels), width), IGNORED, dtype=labels.dtype, device=labels.device)
        columns = masked.cumsum(dim=1)[masked] - 1
        tokens[rows, columns] = labels[masked]
    else:
        tokens = torch.where(masked, labels, text.to(labels.dtype)).masked_fill(~(keep | masked), IGNORED)
    steps = torch.arange(num_following + 1, device=labels.device)
    padded = torch.nn.functional.pad(tokens, (0, num_following), value=IGNORED)
    found = padded[rows[:, None], columns[:, None] + steps]
    return found.masked_fill((found == IGNORED).cumsum(dim=1) > 0, IGNORED)  # a difference needs all tokens between
