"""The losses of the text with phrases: its hidden states are read from tokens and encoded phrases, interleaved."""

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
    """Return L_p and L_kl of each row, (batch,) each, by name; divided by `num_targets` they are each text's own.

    L_p is a sum. So is L_kl with `kl_divisor="tokens"`; with "steps" that sum is divided by m, the row's tokens and
    phrases, and multiplied by `num_targets`. The loss of a batch is then the mean of its rows' L_kl, each with the
    weight that its tokens have in L_t, and accumulation and several processes change nothing.

    Args:
        model: A `DynamicVocabForCausalLM`.
        hidden: (batch, time, d), the states of the same text in tokens, which L_kl compares with.
        num_targets: (batch,), how many tokens of the text are predicted.
        batch: The text with phrases.
        others: Passed to the backbone.
    Raises:
        ValueError: If a field of the batch points to nothing.
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
    else:  # every process must use every parameter: gradients of 0
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
