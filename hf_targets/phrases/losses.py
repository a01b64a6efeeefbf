"""The losses of a text with phrases: L_p, L_t and L_kl, and the columns of a batch that they are computed from."""

from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_targets.backbones.alignment import next_targets
from hf_targets.backbones.call import Call
from hf_targets.backbones.inputs import can_look, check_integers, check_range
from hf_targets.backbones.output_matrix import OutputMap
from hf_targets.backbones.packing import num_texts, text_numbers
from hf_targets.backbones.weight_access import call_inside, num_rows
from hf_targets.maths.dynamic_losses import dynamic_cross_entropy, token_kl_divergence
from hf_targets.maths.losses import IGNORED
from hf_targets.phrases.configuration import DynamicVocabConfig


@dataclass(frozen=True)
class PhraseBatch:
    """The columns of a `PhraseCollator` batch from `phrase_input_ids` on, with the same names.

    Attributes:
        phrase_input_ids: (batch, positions), the text with phrases; id V + p is phrase p of the batch's own table.
        phrase_targets: (batch, positions), unshifted like labels.
        token_positions: (batch, positions), the index in `input_ids` of the last token of each position.
        windows: (windows, length), token ids to encode.
        phrase_windows: (phrases, 2), for each phrase the index of its window and its number of tokens.
        phrase_attention_mask: (batch, positions), 0 at padding.
        phrase_mask: (texts, phrases), true where the phrase is in the text's table; a text is a row, if not packed.
        phrase_position_ids: (batch, positions), of packed rows; they start again at 0 with each text.
    """

    phrase_input_ids: Tensor
    phrase_targets: Tensor
    token_positions: Tensor
    windows: Tensor
    phrase_windows: Tensor
    phrase_attention_mask: Tensor | None = None
    phrase_mask: Tensor | None = None
    phrase_position_ids: Tensor | None = None

    @property
    def texts(self) -> Tensor:
        """The number of each position's text, (batch, positions)."""
        return text_numbers(self.phrase_input_ids, self.phrase_position_ids)

    @classmethod
    def taken_from(cls, arguments: dict[str, Any]) -> Self | None:
        """Remove the fields from the arguments of a call and return them; None if the arguments have no such field."""
        given = {name: arguments.pop(name, None) for name in _NAMES}
        if all(value is None for value in given.values()):
            return None
        if missing := [name for name in _NAMES[:5] if given[name] is None]:
            raise ValueError(f"a batch with phrases needs {', '.join(missing)} too; make it with PhraseCollator")
        return cls(**given)

    def check(self, vocab_size: int, time: int) -> None:
        """Check that the shapes of the fields agree, and that all ids and indices are in range.

        The phrase encoder checks `phrase_windows`. `time` is the number of positions of the text in tokens.
        """
        ids, targets, num_phrases = self.phrase_input_ids, self.phrase_targets, len(self.phrase_windows)
        for name in ("phrase_attention_mask", "phrase_targets", "token_positions", "phrase_position_ids"):
            _check_shape(name, getattr(self, name), ids.shape, "phrase_input_ids")
        check_integers(phrase_input_ids=ids, phrase_targets=targets, token_positions=self.token_positions)
        check_range(ids, vocab_size + num_phrases, "phrase_input_ids must be")
        check_range(targets.masked_fill(targets == IGNORED, 0), vocab_size + num_phrases, "phrase_targets must be")
        check_range(self.token_positions, time, "token_positions must be")
        check_range(self.windows, vocab_size, "windows must be")
        if self.phrase_mask is not None and can_look(ids):
            shape = num_texts(ids, self.phrase_position_ids), num_phrases
            _check_shape("phrase_mask", self.phrase_mask, shape, "(texts, phrases)")


_NAMES = tuple(field.name for field in fields(PhraseBatch))  # asked for once: torch.compile cannot


def _check_shape(name: str, tensor: Tensor | None, shape: tuple[int, ...], what: str) -> None:
    if tensor is not None and tensor.shape != shape:
        raise ValueError(f"{name} must have the shape of {what}, {tuple(shape)}, got {tuple(tensor.shape)}")


def interleaved_losses(model: Any, hidden: Tensor, call: Call, batch: PhraseBatch) -> dict[str, Tensor]:
    """Return L_p and L_kl of each row, (batch,) each, by name. Divided by its number of targets, they are a text's.

    L_p is a sum over positions. L_kl of a text is a sum divided by m, its number of predicted steps (tokens and
    phrases), and multiplied by its number of predicted tokens: L_kl of a batch is then the mean over its texts,
    weighted by their number of tokens, whatever batches and processes they are in.

    Args:
        model: A `DynamicVocabForCausalLM`.
        hidden: (batch, time, d), the hidden states of the same text in tokens, with which L_kl compares.
        call: Of the text in tokens.
        batch: The text with phrases.
    """
    ids, windows, phrase_windows = batch.phrase_input_ids, batch.windows, batch.phrase_windows
    output = model.get_output_embeddings()
    vocab_size = num_rows(output)
    batch.check(vocab_size, hidden.shape[1])
    if batch.phrase_position_ids is not None and call.position_ids is None:
        raise ValueError("packed rows with phrases need position_ids beside phrase_position_ids; give both")
    tokens = model.get_input_embeddings()(ids.masked_fill(ids >= vocab_size, 0))
    if len(phrase_windows):
        inputs, outputs = model.embed_phrases(windows, phrase_windows)
        slots = (ids - vocab_size).clamp(min=0)
        embeds = torch.where((ids >= vocab_size)[..., None], inputs[slots].to(tokens.dtype), tokens)
        unused = hidden.new_zeros(())
    else:  # each process must use every parameter, so the encoder gets gradients of 0
        pair = torch.tensor([[0, 1]], device=ids.device)
        inputs, outputs = model.embed_phrases(torch.zeros(1, 1, dtype=ids.dtype, device=ids.device), pair)
        embeds, unused, outputs = tokens, inputs.sum() * 0 + outputs.sum() * 0, outputs[:0]
    mask, positions, texts = batch.phrase_attention_mask, batch.phrase_position_ids, batch.texts
    given = {"attention_mask": mask, "position_ids": positions, "return_dict": True, **call.others}
    states = model.backbone.base_model(inputs_embeds=embeds, **given)[0]
    targets = next_targets(batch.phrase_targets, mask, positions)
    excluded = None if batch.phrase_mask is None else (~batch.phrase_mask)[texts]
    parts = {"phrase": phrase_loss(states, targets, output, outputs, excluded) + unused}
    if model.config.kl_loss_weight:
        assert call.targets is not None
        packed = None if positions is None else call.position_ids
        num_tokens = _num_targets(call.targets, text_numbers(call.targets, packed))
        shares = num_tokens[texts] / _num_targets(targets, texts)[texts].clamp(min=1)
        losses = kl_loss(model.config, output, states, targets, hidden, batch.token_positions)
        parts["kl"] = (losses * shares).sum(dim=1)
    return parts


def _num_targets(targets: Tensor, texts: Tensor) -> Tensor:
    """Return the number of targets of each text, by its number."""
    counts = torch.zeros(targets.numel(), dtype=torch.long, device=targets.device)
    return counts.index_add(0, texts.flatten(), (targets != IGNORED).flatten().long())


def token_loss(hidden: Tensor, targets: Tensor, output: nn.Linear) -> Tensor:
    """Return L_t, summed over each row, (batch,): the usual loss of a language model, without phrases."""
    return OutputMap(output).cross_entropy(hidden, targets).sum(dim=1)


def phrase_loss(
    hidden: Tensor, targets: Tensor, output: nn.Linear, phrases: Tensor, excluded: Tensor | None = None
) -> Tensor:
    """Return L_p, summed over each row, (batch,): -log P of equation (1), over tokens and phrases.

    Args:
        targets: (batch, time), token ids, and phrase ids from V on.
        phrases: (phrases, d), or (batch, phrases, d) if each row has its own; or with d + 1, as `phrase_logits` takes.
        excluded: (batch, time, phrases), true where the phrase is left out of the softmax at a position.
    """
    if phrases.ndim == 3:
        rows = range(len(hidden))
        masks = [None if excluded is None else excluded[row : row + 1] for row in rows]
        parts = [phrase_loss(hidden[r : r + 1], targets[r : r + 1], output, phrases[r], masks[r]) for r in rows]
        return torch.cat(parts)
    left_out = None if excluded is None else excluded.flatten(0, 1)

    def compute(weight: Tensor, bias: Tensor | None, hidden: Tensor, phrases: Tensor) -> Tensor:
        return dynamic_cross_entropy(hidden, weight, phrases, targets.flatten(), bias, excluded=left_out)

    losses = call_inside(output, compute, hidden.flatten(0, 1), phrases)
    return losses.view(targets.shape).sum(dim=1)


def kl_loss(
    config: DynamicVocabConfig,
    output: nn.Linear,
    hidden: Tensor,
    targets: Tensor,
    teacher: Tensor,
    token_positions: Tensor,
) -> Tensor:
    """Return L_kl of each position, (batch, positions), 0 where `config.kl_positions` leaves it out.

    In the text with phrases, position j predicts position j + 1, whose last token is token s(j + 1) of the text in
    tokens. In the text in tokens, position s(j + 1) - 1 predicts this token. L_kl compares these two positions.

    Args:
        hidden: (batch, positions, d), hidden states of the text with phrases.
        targets: (batch, positions), the token or phrase that each position predicts, phrases from V on.
        teacher: (batch, time, d), hidden states of the text in tokens.
        token_positions: (batch, positions), s.
    Source: Liu et al., "Generation with Dynamic Vocabulary", section 2.4, L_kl.
    """
    taken = targets != IGNORED
    if config.kl_positions == "token_targets":
        # Departs: the paper's sum also compares the position that predicts a phrase with the position that predicts the
        # phrase's last token. Only the second has read the phrase's first tokens, so this is left out.
        taken = taken & (targets < num_rows(output))
    position = (F.pad(token_positions[:, 1:], (0, 1)) - 1).clamp(min=0)
    aligned = teacher.gather(1, position[..., None].expand(-1, -1, teacher.shape[-1]))[taken]

    def compute(weight: Tensor, bias: Tensor | None, hidden: Tensor, teacher: Tensor) -> Tensor:
        return token_kl_divergence(hidden, teacher, weight, bias)

    losses = call_inside(output, compute, hidden[taken], aligned)
    return losses.new_zeros(taken.shape).masked_scatter(taken, losses)
