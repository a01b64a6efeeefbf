"""The three parts of the loss: the text with phrases, the text in tokens, and what keeps the two near each other."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_targets.backbones.weight_access import call_inside, num_rows, output_cross_entropy
from hf_targets.maths.dynamic_losses import dynamic_cross_entropy, token_kl_divergence
from hf_targets.maths.losses import IGNORED
from hf_targets.phrases.configuration import DynamicVocabConfig, KlDirection


def token_loss(hidden: Tensor, targets: Tensor, output: nn.Linear) -> Tensor:
    """Return L_t, summed over each row, (batch,): the vanilla language model's loss, with no phrases at all."""
    return output_cross_entropy(output, hidden, targets).sum(dim=1)


def phrase_loss(
    hidden: Tensor, targets: Tensor, output: nn.Linear, phrases: Tensor, excluded: Tensor | None = None
) -> Tensor:
    """Return L_p, summed over each row, (batch,): -log P of equation (1), over tokens and phrases.

    Args:
        hidden: (batch, time, d).
        targets: (batch, time), phrases from V on.
        phrases: (phrases, d), or (batch, phrases, d) where each row has its own.
        excluded: (batch, time, phrases), those that are not in the sum at a position.
    """
    if phrases.ndim == 3:
        rows = range(len(hidden))
        masks = [None if excluded is None else excluded[row : row + 1] for row in rows]
        parts = [phrase_loss(hidden[r : r + 1], targets[r : r + 1], output, phrases[r], masks[r]) for r in rows]
        return torch.cat(parts)
    left_out = None if excluded is None else excluded.flatten(0, 1)
    losses = call_inside(output, _phrase_losses, hidden.flatten(0, 1), phrases, targets.flatten(), left_out)
    return losses.view(targets.shape).sum(dim=1)


def _phrase_losses(
    weight: Tensor, bias: Tensor | None, hidden: Tensor, phrases: Tensor, targets: Tensor, excluded: Tensor | None
) -> Tensor:
    return dynamic_cross_entropy(hidden, weight, phrases, targets, bias, excluded=excluded)


def kl_loss(
    config: DynamicVocabConfig,
    hidden: Tensor,
    targets: Tensor,
    teacher: Tensor,
    token_positions: Tensor,
    output: nn.Linear,
    phrases: Tensor,
    first_tokens: Tensor,
    excluded: Tensor | None,
) -> Tensor:
    """Return L_kl, summed over the positions of each row where it is taken, (batch,).

    Position j of the text with phrases predicts what stands at j + 1, whose last token is token s(j + 1) of the text in
    tokens; that is predicted from position s(j + 1) - 1.

    Args:
        hidden: (batch, positions, d), of the text with phrases.
        targets: (batch, positions), what each predicts, phrases from V on.
        teacher: (batch, time, d), of the text in tokens.
        token_positions: (batch, positions), s.
        first_tokens: (phrases,), the id of each phrase's first token.
        excluded: (batch, positions, phrases).
    Source: Liu et al., "Generation with Dynamic Vocabulary", section 2.4, L_kl.
    """
    taken = targets != IGNORED
    if config.kl_positions == "token_targets":
        # Departs: the paper's sum also compares the position that predicts a phrase with that of its last token, one of
        # which has not read the phrase's first tokens, and the other has.
        taken = taken & (targets < num_rows(output))
    position = (F.pad(token_positions[:, 1:], (0, 1)) - 1).clamp(min=0)
    aligned = teacher.gather(1, position[..., None].expand(-1, -1, teacher.shape[-1]))[taken]
    folded: tuple[Tensor | None, ...] = (None, None, None)
    if config.kl_support == "first_token" and len(phrases):
        folded = (phrases, first_tokens, None if excluded is None else excluded[taken])
    settings = config.kl_direction, config.kl_detach_teacher
    losses = call_inside(output, _kl_divergences, hidden[taken], aligned, *folded, *settings)
    return losses.new_zeros(taken.shape).masked_scatter(taken, losses).sum(dim=1)


def _kl_divergences(
    weight: Tensor,
    bias: Tensor | None,
    hidden: Tensor,
    teacher: Tensor,
    phrases: Tensor | None,
    first_tokens: Tensor | None,
    excluded: Tensor | None,
    direction: KlDirection,
    detach_teacher: bool,
) -> Tensor:
    return token_kl_divergence(
        hidden,
        teacher,
        weight,
        bias,
        direction=direction,
        detach_teacher=detach_teacher,
        phrases=phrases,
        first_tokens=first_tokens,
        excluded=excluded,
    )


def excluded_phrases(
    shape: Sequence[int],
    num_phrases: int,
    phrase_mask: Tensor | None,
    masked_phrases: Tensor | None,
    device: torch.device,
) -> Tensor | None:
    """Return which phrases are left out at each position, (batch, positions, phrases); None if none is.

    Args:
        phrase_mask: (batch, phrases), true where the phrase is in the row's table.
        masked_phrases: (k, 3): row, position and phrase of each that is a right continuation there, too.
    """
    if phrase_mask is None and masked_phrases is None:
        return None
    excluded = torch.zeros(*shape, num_phrases, dtype=torch.bool, device=device)
    if phrase_mask is not None:
        excluded |= ~phrase_mask[:, None]
    if masked_phrases is not None:
        excluded[masked_phrases.unbind(dim=1)] = True
    return excluded
