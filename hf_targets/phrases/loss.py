"""The three parts of the loss: of the text with phrases, of the text in tokens, and of the divergence of the two."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_targets.backbones.weight_access import call_inside, num_rows, output_cross_entropy
from hf_targets.maths.dynamic_losses import dynamic_cross_entropy, token_kl_divergence
from hf_targets.maths.losses import IGNORED
from hf_targets.phrases.configuration import DynamicVocabConfig, KlDirection


def token_loss(hidden: Tensor, targets: Tensor, output: nn.Linear) -> Tensor:
    """Return L_t, summed over each row, (batch,): the usual loss of a language model, without phrases."""
    return output_cross_entropy(output, hidden, targets).sum(dim=1)


def phrase_loss(
    hidden: Tensor, targets: Tensor, output: nn.Linear, phrases: Tensor, excluded: Tensor | None = None
) -> Tensor:
    """Return L_p, summed over each row, (batch,): -log P of equation (1), over tokens and phrases.

    Args:
        hidden: (batch, time, d).
        targets: (batch, time), token ids, and phrase ids from V on.
        phrases: (phrases, d), or (batch, phrases, d) if each row has its own.
        excluded: (batch, time, phrases), true where the phrase is left out of the softmax at a position.
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
    """Return L_kl of each row, (batch,), summed over the positions that `config.kl_positions` selects.

    In the text with phrases, position j predicts position j + 1, whose last token is token s(j + 1) of the text in
    tokens. In the text in tokens, position s(j + 1) - 1 predicts this token. L_kl compares these two positions.

    Args:
        hidden: (batch, positions, d), hidden states of the text with phrases.
        targets: (batch, positions), the token or phrase that each position predicts, phrases from V on.
        teacher: (batch, time, d), hidden states of the text in tokens.
        token_positions: (batch, positions), s.
        first_tokens: (phrases,), the id of each phrase's first token.
        excluded: (batch, positions, phrases), as for `phrase_loss`.
    Source: Liu et al., "Generation with Dynamic Vocabulary", section 2.4, L_kl.
    """
    taken = targets != IGNORED
    if config.kl_positions == "token_targets":
        # Departs: the paper's sum also compares the position that predicts a phrase with the position that predicts the
        # phrase's last token. Only the second has read the phrase's first tokens.
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
    """Return a mask that is true where a phrase is left out, (batch, positions, phrases); None if there are no masks.

    Args:
        shape: (batch, positions).
        phrase_mask: (batch, phrases), true where the phrase is in the row's table.
        masked_phrases: (k, 3), row, position and phrase: the text continues with the phrase, but it is not the target.
    """
    if phrase_mask is None and masked_phrases is None:
        return None
    excluded = torch.zeros(*shape, num_phrases, dtype=torch.bool, device=device)
    if phrase_mask is not None:
        excluded |= ~phrase_mask[:, None]
    if masked_phrases is not None:
        excluded[masked_phrases.unbind(dim=1)] = True
    return excluded
