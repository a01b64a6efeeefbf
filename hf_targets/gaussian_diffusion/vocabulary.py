"""The one embedding of a Gaussian diffusion model under resizing, adapters and checkpointing."""

# pyright: reportAttributeAccessIssue=false
# (a mixin: the model has the methods of PreTrainedModel)

from typing import Any, cast

import torch
from torch import Tensor, nn

from hf_targets.backbones.inputs import check_kept_ids
from hf_targets.gaussian_diffusion.configuration import DifformerConfig


class Vocabulary:
    """One embedding of source and text, tied to the output matrix; some models have another one of the source."""

    embed_tokens: nn.Embedding
    lm_head: nn.Linear
    encoder: nn.Module

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = False
    ) -> nn.Embedding:
        """Resize the vocabulary; embeddings of new words are drawn with the deviation of those that stand.

        Departs: Transformers' default, `mean_resizing=True`, puts all new words at the mean of the others, where their
        directions, and with them their embeddings, are nearly the same.
        """
        before, config = self.embed_tokens.num_embeddings, cast(DifformerConfig, self.config)
        check_kept_ids(config, new_num_tokens, "pad_token_id", "eos_token_id", "bos_token_id")
        resized = cast(nn.Embedding, super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing))
        if not mean_resizing:
            with torch.no_grad():
                resized.weight[before:].normal_().mul_(resized.weight[:before].std())
        return resized

    def check_vocabulary(self) -> None:
        """Raise a ValueError if an adapter is on the embedding: it would not be in the output matrix."""
        if not isinstance(self.embed_tokens, nn.Embedding):
            raise ValueError(
                "one matrix serves source, text and output, and an adapter on embed_tokens would not be in the output; "
                "leave it out of target_modules and modules_to_save"
            )

    def enable_input_require_grads(self) -> None:
        """Give what is read a gradient, the embeddings of a source of its own too, so that adapters are trained."""
        super().enable_input_require_grads()
        if isinstance(own := self.encoder.embed_tokens, nn.Embedding):
            self._require_grads_hooks.append(own.register_forward_hook(_require_grad))


def _require_grad(module: nn.Module, inputs: Any, output: Tensor) -> None:
    output.requires_grad_(True)
