"""The diffusion Transformer of a masked diffusion model, and the sentence curve inside it."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers.configuration_utils import PreTrainedConfig
from transformers.masking_utils import create_bidirectional_mask, packed_sequence_mask_function
from transformers.modeling_utils import EmbeddingAccessMixin

from hf_targets.backbones.new_parts import ZeroInitLinear
from hf_targets.backbones.packing import text_numbers
from hf_targets.backbones.recorded_states import NOTHING, Wanted
from hf_targets.curves.configuration import CurveConfig
from hf_targets.curves.k_curves import CurveMixture, curve_parts
from hf_targets.curves.sentence_curve import SentenceCurve
from hf_targets.masked_diffusion.configuration import MdlmConfig
from hf_targets.masked_diffusion.layers import DitBlock, OutputLayer, TimeEmbedding, rotary_table

_ATTENTIONS = ("eager", "sdpa", "flex_attention")


def check_takes_masks(config: PreTrainedConfig, what: str) -> None:
    """Raise a ValueError, for `what` needs a mask, if the attention of a configuration takes none."""
    if (name := config._attn_implementation) not in _ATTENTIONS:
        raise ValueError(
            f"{what} needs a mask, which {name} does not take; choose one of {', '.join(_ATTENTIONS)} with "
            "set_attn_implementation"
        )


class BackboneOutput(NamedTuple):  # a tuple: DeepSpeed and FSDP look for tensors in no other class of ours
    """The output of `MdlmBackbone`.

    Attributes:
        hidden: (batch, length, d), the input of the output matrix.
        control_points: (batch, N, d), the predicted curve, which begins at the row's first token; None without a curve.
        curve_probabilities: (batch, K), the probabilities of K > 1 predicted curves; None otherwise.
        hidden_states: The input of each block, then `hidden`; None if not requested.
        attentions: Attention weights of each block, (rows, heads, positions, positions); None if not requested.
    """

    hidden: Tensor
    control_points: Tensor | None = None
    curve_probabilities: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


def read_through_curve(
    curve: SentenceCurve,
    curves: CurveMixture | None,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    first: Callable[[Tensor, Tensor | None], Tensor],
    last: Callable[[Tensor, Tensor | None, Tensor | None], Tensor],
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the states of tokens that layers on control points give, the points, and the probabilities of K > 1.

    Args:
        curves: Chooses among K > 1 curves; None: there is one.
        input_ids: (batch, length).
        attention_mask: (batch, length), 0 at padding, only at the ends.
        first: Returns the states (batch, length, d) of ids and their mask, padding on the right.
        last: Returns the last states (rows, N, d) of control points, their mask, and the lengths of their texts.
    """
    length, lengths, back = input_ids.shape[1], None, None
    if attention_mask is not None:  # a curve begins at the first real token, so all padding moves to the right
        positions = torch.arange(length, device=input_ids.device)
        start = (attention_mask.cumsum(dim=1) == 0).sum(dim=1, keepdim=True)
        lengths, back = attention_mask.sum(dim=1), (positions - start) % length
        input_ids = input_ids.gather(1, (positions + start) % length)
        attention_mask = (positions < lengths[:, None]).long()
    points = curve.to_control_points(first(input_ids, attention_mask), lengths)
    keep, probabilities = None if lengths is None else curve.keep(lengths, length).long(), None
    if curves is not None:
        points, keep = curves(points), None if keep is None else curves.expand_keep(keep)
    points = last(points, keep, lengths)
    if curves is not None:
        points, probabilities = curves.select(points)
    hidden = curve.to_embeddings(points, length, lengths)
    if back is not None:
        hidden = hidden.gather(1, back[..., None].expand_as(hidden))
    return hidden, points, probabilities


def num_token_layers(config: MdlmConfig) -> int:
    """Return how many first layers run on tokens; the others run on control points.

    Raises:
        ValueError: If the curve has more layers than there are.
    """
    curve, count = cast(CurveConfig | None, config.curve), config.num_hidden_layers
    if curve is None:
        return count
    last = count if curve.place == "input" else curve.num_curve_layers or 1
    if last > count:
        raise ValueError(f"num_curve_layers must be at most num_hidden_layers={count}, got {last}")
    return count - last


class MdlmBackbone(EmbeddingAccessMixin, nn.Module):
    """Embedding, blocks and output layer; with a curve, the last blocks run on its control points.

    With `place="input"`, as in the paper, the embeddings become control points (P = E B^+) and all blocks run on these.
    The normalised states of the last block then become states of tokens (E = P B), so logits are W (H B), definition
    4.1. With `place="hidden"` the first blocks run on tokens; only the last `num_curve_layers` run on control points.

    Source: Heo and Choi, "Sentence Curve Language Models", section 4.2, which calls `place="hidden"` future work.
    """

    _input_embed_layer = "vocab_embed"

    def __init__(self, config: MdlmConfig) -> None:
        super().__init__()
        self.config = config
        self.vocab_embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.sigma_map = TimeEmbedding(config)
        self.blocks = nn.ModuleList([DitBlock(config) for _ in range(config.num_hidden_layers)])
        self.output_layer = OutputLayer(config)
        self.curve, self.curves = curve_parts(config.curve, config.hidden_size)
        self.num_token_layers = num_token_layers(config)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        sigma: Tensor,
        wanted: Wanted = NOTHING,
        position_ids: Tensor | None = None,
    ) -> BackboneOutput:
        """Return the input of the output matrix, and the curve.

        Args:
            input_ids: (batch, length).
            attention_mask: (batch, length), 0 at padding, only at the ends; the output there has no meaning.
            sigma: (batch or 1, 1 or length), the total noise.
            wanted: What to record; attention must be eager for its weights.
            position_ids: (batch, length), of packed rows, without a curve; they tell texts apart and nothing else, as
                rotations depend on distances alone.
        """
        states: list[Tensor] | None = [] if wanted.hidden_states else None
        weights: list[Tensor] | None = [] if wanted.attentions else None
        run = partial(self._run, states=states, weights=weights)

        def output(hidden: Tensor, points: Tensor | None = None, chances: Tensor | None = None) -> BackboneOutput:
            recorded = None if states is None else (*states, hidden), None if weights is None else tuple(weights)
            return BackboneOutput(hidden, points, chances, *recorded)

        condition = self.sigma_map(sigma)
        if self.curve is None:
            texts = None if position_ids is None else text_numbers(input_ids, position_ids)
            hidden = run(self.blocks, self.vocab_embed(input_ids), condition, attention_mask, texts)
            return output(self.output_layer(hidden, condition))

        def first(ids: Tensor, keep: Tensor | None) -> Tensor:
            return run(self.blocks[: self.num_token_layers], self.vocab_embed(ids), condition, keep)

        def last(points: Tensor, keep: Tensor | None, _: Tensor | None) -> Tensor:
            each = condition
            if len(each) > 1 and self.curves is not None:
                each = each.repeat_interleave(self.curves.num_curves, dim=0)
            return self.output_layer(run(self.blocks[self.num_token_layers :], points, each, keep), each)

        return output(*read_through_curve(self.curve, self.curves, input_ids, attention_mask, first, last))

    def get_output_embeddings(self) -> nn.Linear:
        """Return the output embedding."""
        return self.output_layer.linear

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the output embedding."""
        self.output_layer.linear = cast(ZeroInitLinear, new_embeddings)

    def _run(
        self,
        blocks: nn.ModuleList,
        hidden: Tensor,
        condition: Tensor,
        keep: Tensor | None,
        texts: Tensor | None = None,
        *,
        states: list[Tensor] | None,
        weights: list[Tensor] | None,
    ) -> Tensor:
        if not len(blocks):
            return hidden
        within = None if texts is None else packed_sequence_mask_function(texts)
        if within is not None:
            check_takes_masks(self.config, "a packed row")
        mask = create_bidirectional_mask(self.config, hidden, keep, and_mask_function=within)
        head_dim = self.config.hidden_size // self.config.num_attention_heads
        rotary = rotary_table(hidden.shape[1], head_dim, hidden.dtype, hidden.device)
        for block in blocks:
            if states is not None:
                states.append(hidden)
            hidden = block(hidden, condition, rotary, mask, weights)
        return hidden
