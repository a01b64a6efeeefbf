"""How long a text is, predicted from its source: as the difference of the two lengths."""

import torch
from torch import Tensor, nn

from hf_targets.gaussian_diffusion.configuration import DifformerConfig

LEAST_LENGTH = 2
"""Tokens of the shortest text that is written: a word and the end."""


class LengthPredictor(nn.Module):
    """A class for each difference between the lengths of a text and its source, from the mean of the encoder's states.

    Class c stands for the difference c - classes / 2. Longer and shorter texts are in the outermost classes.

    Source: Gu and Kong, as NATransformerModel of fairseq has it with `--pred-length-offset`; `length_projection="tanh"`
        is that of DINOISER's published program.
    """

    def __init__(self, config: DifformerConfig) -> None:
        super().__init__()
        self.num_classes, self.longest = config.num_length_classes, config.max_position_embeddings
        size = config.hidden_size
        if config.length_projection == "linear":
            self.embed_length: nn.Module = nn.Linear(size, config.num_length_classes, bias=False)
        else:
            self.embed_length = nn.Sequential(
                nn.Linear(size, size), nn.Tanh(), nn.Linear(size, config.num_length_classes)
            )

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return logits (batch, classes) from the encoder's hidden states (batch, source, hidden).

        Args:
            mask: (batch, source), 0 at padding.
        """
        kept = mask[..., None].to(hidden.dtype)
        return self.embed_length((hidden * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1))

    def classes(self, is_target: Tensor, mask: Tensor) -> Tensor:
        """Return the class (batch,) of texts, the outermost for want of another.

        Args:
            is_target: (batch, time), bool, false after the end of a text.
            mask: (batch, source), 0 at padding.
        """
        classes = is_target.sum(dim=1) - mask.sum(dim=1) + self.num_classes // 2
        return classes.clamp(0, self.num_classes - 1)

    def candidates(self, logits: Tensor, mask: Tensor, num_lengths: int) -> Tensor:
        """Return the most probable length and those around it, (batch, num_lengths), each within what can be written.

        Of four lengths two are shorter than the most probable one and one is longer, as in Difformer's program.
        Departs: DINOISER's program takes the most probable lengths, not the neighbours of the best one.
        """
        best = (logits.argmax(dim=1) - self.num_classes // 2 + mask.sum(dim=1)).clamp(LEAST_LENGTH, self.longest)
        around = torch.arange(num_lengths, device=logits.device) - num_lengths // 2
        return (best[:, None] + around).clamp(LEAST_LENGTH, self.longest)
