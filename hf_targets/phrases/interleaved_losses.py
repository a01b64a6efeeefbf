"""The losses of the text with phrases, whose input is a mixed sequence of tokens and encoded phrases."""

from typing import Any, cast

import torch
from torch import Tensor

from hf_targets.backbones.alignment import next_targets
from hf_targets.backbones.weight_access import num_rows
from hf_targets.maths.losses import IGNORED
from hf_targets.phrases.configuration import DynamicVocabConfig
from hf_targets.phrases.loss import excluded_phrases, kl_loss, phrase_loss
from hf_targets.phrases.phrase_batch import PhraseBatch


def interleaved_losses(
    model: Any, hidden: Tensor, num_targets: Tensor, batch: PhraseBatch, others: dict[str, Any]
) -> dict[str, Tensor]:
    """Return L_p and L_kl of each row, (batch,) each, by name. Divided by `num_targets`, they are the losses of a text.

    L_p is a sum over positions. L_kl is a sum, too, with `kl_divisor="tokens"`. With "steps" this sum is divided by m,
    the row's number of predicted steps (tokens and phrases), and multiplied by `num_targets`. L_kl of a batch is then
    the mean over its rows, weighted by their number of tokens as in L_t. Gradient accumulation and several processes
    therefore do not change it.

    Args:
        model: A `DynamicVocabForCausalLM`.
        hidden: (batch, time, d), the hidden states of the same text in tokens, with which L_kl compares.
        num_targets: (batch,), the number of predicted tokens of the text in tokens.
        batch: The text with phrases.
        others: Further arguments of the backbone.
    Raises:
        ValueError: If a field of the batch has a wrong shape, or an id or index is out of range.
    """
    ids, windows, phrase_windows = batch.phrase_input_ids, batch.windows, batch.phrase_windows
    output = model.get_output_embeddings()
    vocab_size = num_rows(output)
    batch.check(vocab_size, hidden.shape[1])
    tokens = model.get_input_embeddings()(ids.masked_fill(ids >= vocab_size, 0))
    if len(phrase_windows):
        inputs, outputs = model.phrase_encoder(windows, phrase_windows)
        slots = (ids - vocab_size).clamp(min=0)
        embeds = torch.where((ids >= vocab_size)[..., None], inputs[slots].to(tokens.dtype), tokens)
        first_tokens = windows[phrase_windows[:, 0], 0]
        unused = hidden.new_zeros(())
    else:  # each process must use every parameter, so the encoder gets gradients of 0
        pair = torch.tensor([[0, 1]], device=ids.device)
        inputs, outputs = model.phrase_encoder(torch.zeros(1, 1, dtype=ids.dtype, device=ids.device), pair)
        embeds, first_tokens, unused = tokens, ids.new_zeros(0), inputs.sum() * 0 + outputs.sum() * 0
        outputs = outputs[:0]
    mask = batch.phrase_attention_mask
    states = model.backbone.base_model(inputs_embeds=embeds, attention_mask=mask, return_dict=True, **others)[0]
    targets = next_targets(batch.phrase_targets, mask)
    excluded = excluded_phrases(ids.shape, len(outputs), batch.phrase_mask, batch.masked_phrases, ids.device)
    parts = {"phrase": phrase_loss(states, targets, output, outputs, excluded) + unused}
    if model.config.kl_loss_weight:
        sums = kl_loss(
            cast(DynamicVocabConfig, model.config),
            states,
            targets,
            hidden,
            batch.token_positions,
            output,
            outputs,
            first_tokens,
            excluded,
        )
        by_tokens = model.config.kl_divisor == "tokens"
        num_steps = (targets != IGNORED).sum(dim=1).clamp(min=1)
        parts["kl"] = sums if by_tokens else sums * (num_targets / num_steps)
    return parts
