"""The layers of a causal language model in a masked diffusion model: attention to both sides, and targets shifted."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# (a mixin: the model defines the configuration and the backbone)

import copy
from collections.abc import Callable
from os import PathLike
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.masking_utils import and_masks, create_bidirectional_mask, packed_sequence_mask_function
from transformers.utils.output_capturing import maybe_install_capturing_hooks

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.output_matrix import (
    find_output_scale,
    output_embedding,
    read_causal,
    rounding_of,
    soft_cap_of,
)
from hf_targets.backbones.packing import text_numbers
from hf_targets.backbones.recorded_states import NOTHING, Wanted
from hf_targets.backbones.weight_access import execution_device, num_rows
from hf_targets.backbones.wrapping import check_loading, load_base, place_new_part, split_fields
from hf_targets.curves.configuration import CurveConfig
from hf_targets.curves.k_curves import curve_parts
from hf_targets.masked_diffusion.backbone import (
    BackboneOutput,
    check_takes_masks,
    num_token_layers,
    read_through_curve,
)
from hf_targets.masked_diffusion.configuration import CAUSAL_FIELDS, MdlmConfig


class CausalReading(nn.Module):
    """Reads a canvas with the layers of a causal model, each position attending to all others.

    Attention is changed by its mask alone: the layers and their code are Transformers' own. With `annealing_steps` a
    later position is visible with the probability step / annealing_steps, drawn for each pair of positions; earlier
    ones always are. The step counts the calls in training mode and is saved with the weights, also by peft. With
    gradient accumulation a step of the optimizer counts as several. In evaluation mode all positions are visible.

    With a curve, the first layers run on tokens and the last ones on control points of their states, as in
    `MdlmBackbone`. The last normalisation is on points, too.

    Source: Gong et al. 2024, "Scaling Diffusion Language Models via Adaptation from Autoregressive Models", called
        DiffuLLaMA: shift, annealing, no embedding of the time.
    """

    def __init__(self, config: MdlmConfig) -> None:
        super().__init__()
        self.config = config
        self.curve, self.curves = curve_parts(config.curve, config.hidden_size)
        self.num_token_layers = num_token_layers(config)
        if config.annealing_steps is not None:
            self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def reset_parameters(self) -> None:
        """Begin the annealing anew, as where a checkpoint has no step."""
        if self.config.annealing_steps is not None:
            init.zeros_(self.step)

    def forward(
        self,
        backbone: Callable[[], PreTrainedModel],
        canvas: Tensor,
        attention_mask: Tensor | None,
        wanted: Wanted = NOTHING,
        position_ids: Tensor | None = None,
    ) -> BackboneOutput:
        """Return the input of the output matrix, (batch, length, d), and the curve.

        With `shift` the input at position i is the state at i - 1, which predicts token i in the causal model.
        Departs: the first token of a row is predicted by its own state, as in Dream; DiffuLLaMA does not predict it.

        Args:
            backbone: Returns the causal model. An argument that is one would be moved by accelerate.
            canvas, attention_mask: (batch, length), 0 at padding, only at the ends.
            position_ids: (batch, length), of packed rows, without a curve.
        """
        base, states, weights = cast(PreTrainedModel, backbone().base_model), [], []
        if self.curve is not None and (wanted.hidden_states or wanted.attentions):
            maybe_install_capturing_hooks(base)  # each pair of parts would put hooks on the same layers anew
        parts = (base, base) if self.curve is None else split_layers(base, self.num_token_layers)
        texts = None if position_ids is None else text_numbers(canvas, position_ids)
        visible = self._visible(canvas.shape[1], canvas.device)

        def run(part: PreTrainedModel, keep: Tensor | None, visible: Tensor | None, **inputs: Any) -> Tensor:
            output = self._call(part, keep, visible, wanted, **inputs)
            states.extend((output.get("hidden_states") or ())[:-1])
            weights.extend(output.get("attentions") or ())
            return output[0]

        def first(ids: Tensor, keep: Tensor | None) -> Tensor:
            return run(parts[0], keep, visible, input_ids=ids)

        def last(points: Tensor, keep: Tensor | None, lengths: Tensor | None) -> Tensor:
            positions = self._positions(points, canvas.shape[1], lengths)
            return run(parts[1], keep, None, inputs_embeds=points, position_ids=positions)

        points = probabilities = None
        if self.curve is None:
            packed = {} if position_ids is None else {"position_ids": position_ids, "texts": texts}
            hidden = run(parts[0], attention_mask, visible, input_ids=canvas, **packed)
        else:
            through = self.curve, self.curves, canvas, attention_mask, first, last
            hidden, points, probabilities = read_through_curve(*through)
        if self.config.shift:
            hidden = _shifted(hidden, attention_mask, texts)
        hidden = hidden if self.config.output_scale == 1 else hidden * self.config.output_scale
        recorded = (*states, hidden) if wanted.hidden_states else None, tuple(weights) if wanted.attentions else None
        return BackboneOutput(hidden, points, probabilities, *recorded)

    def _call(
        self,
        part: PreTrainedModel,
        keep: Tensor | None,
        visible: Tensor | None,
        wanted: Wanted = NOTHING,
        texts: Tensor | None = None,
        **inputs: Any,
    ) -> Any:
        """Call a model of Transformers, in which the mask alone says what a position attends to."""
        check_takes_masks(part.config, "attention to both sides")
        given = next(iter(inputs.values()))
        like = torch.empty((*given.shape[:2], 0), dtype=part.dtype, device=given.device)
        seen = [] if texts is None else [packed_sequence_mask_function(texts)]
        if visible is not None:
            seen.append(lambda _batch, _head, query, key: (key <= query) | visible[query, key])
        with_all = {"allow_is_bidirectional_skip": False, "and_mask_function": and_masks(*seen) if seen else None}
        mask = create_bidirectional_mask(part.config, like, keep, **with_all)
        if keep is not None and "position_ids" not in inputs:
            inputs["position_ids"] = (keep.cumsum(dim=1) - 1).clamp(min=0)
        if wanted.hidden_states:
            inputs["output_hidden_states"] = True
        if wanted.attentions:
            inputs["output_attentions"] = True
        return part(attention_mask=mask, use_cache=False, return_dict=True, **inputs)

    def _visible(self, length: int, device: torch.device) -> Tensor | None:
        """Return which later positions are visible, (length, length), for this step; None: all."""
        if not self.training or (steps := self.config.annealing_steps) is None:
            return None
        ratio = self.step / steps  # Departs: the first step is causal; DiffuLLaMA's has the ratio 1 / annealing_steps
        self.step += 1
        return torch.rand(length, length, device=device) < ratio.to(device)

    def _positions(self, points: Tensor, length: int, lengths: Tensor | None) -> Tensor:
        """Return the positions of control points, (rows, N), spread over their text, from its first to its last token.

        Departs: `MdlmBackbone` counts the points. Trained layers know how far apart tokens are.
        """
        assert self.curve is not None
        device = points.device
        lengths = torch.tensor([length], device=device) if lengths is None else lengths
        counts = self.curve.keep(lengths, length).sum(dim=1, keepdim=True)
        places = torch.arange(self.curve.num_control_points(length), device=device, dtype=torch.float32)
        places = places * (lengths[:, None] - 1) / (counts - 1).clamp(min=1)
        if self.curves is not None:  # the token of a curve stands at its begin
            places = nn.functional.pad(places, (1, 0))
        return places.repeat_interleave(len(points) // len(places), dim=0)


def split_layers(base: PreTrainedModel, count: int) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return two models that share the modules of `base`: one of its first `count` layers, one of the others.

    The first ends with the states of its last layer, not normalised. The other begins with given states, to which it
    adds no embeddings of positions; rotations by positions are those of the layers.

    Raises:
        ValueError: If the model has no list of its layers.
    """
    total, children = base.config.num_hidden_layers, dict(base.named_children())
    lists = [name for name, child in children.items() if isinstance(child, nn.ModuleList) and len(child) == total]
    if not lists:
        raise ValueError(
            f"a curve is put between layers, and {type(base).__name__} has no list of its {total} layers; choose a "
            "Llama-like, Qwen or GPT-2 model, or leave out curve"
        )
    ends = [name for name in children if "norm" in name or "ln_f" in name][-1:]
    begins = [name for name, child in children.items() if isinstance(child, nn.Dropout)]
    positions = [
        name
        for name, child in children.items()
        if isinstance(child, nn.Embedding) and child is not base.get_input_embeddings()
    ]
    first = _part(base, lists[0], slice(count), dict.fromkeys(ends, nn.Identity()))
    without = {**dict.fromkeys(begins, nn.Identity()), **dict.fromkeys(positions, _NoPositions())}
    return first, _part(base, lists[0], slice(count, None), without)


def _part(base: PreTrainedModel, name: str, chosen: slice, replaced: dict[str, nn.Module]) -> PreTrainedModel:
    part, config = copy.copy(base), copy.copy(base.config)
    part.__dict__.pop("forward", None)  # accelerate's, which calls the whole model
    layers = cast(nn.ModuleList, base.get_submodule(name))[chosen]
    config.num_hidden_layers = len(layers)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[chosen]
    part._modules = {**base._modules, name: layers, **replaced}
    part.config = config
    return part


class _NoPositions(nn.Module):
    def forward(self, position_ids: Tensor) -> Tensor:
        """Return 0, in the place of embeddings of positions."""
        return torch.zeros((), device=position_ids.device)


def _shifted(hidden: Tensor, attention_mask: Tensor | None, texts: Tensor | None) -> Tensor:
    """Return for each position the state of the position before it; the first token of a text keeps its own."""
    moved = torch.cat([hidden[:, :1], hidden[:, :-1]], dim=1)
    if texts is not None:
        is_first = nn.functional.pad(texts.diff(dim=1) != 0, (1, 0), value=True)
    elif attention_mask is not None:
        is_first = (attention_mask == 1) & (attention_mask.cumsum(dim=1) == 1)
    else:
        return moved
    return torch.where(is_first[..., None], hidden, moved)


class MadeFromCausal:
    """`from_causal` of a masked diffusion model."""

    @classmethod
    def from_causal(
        cls,
        model: PreTrainedModel | str | PathLike,
        *,
        mask_token_id: int | None = None,
        shift: bool = True,
        annealing_steps: int | None = None,
        curve: CurveConfig | dict[str, Any] | None = None,
        backbone_kwargs: dict[str, Any] | None = None,
        **config: Any,
    ) -> Self:
        """Make a masked diffusion model of a causal language model, with its weights.

        Each position attends to all others, and the model's own output matrix predicts the masked tokens. `backbone` is
        the model of Transformers, which is used as it is and not copied. Without masks, fully causal and with `shift`,
        log-probabilities are those of the causal model. There is no embedding of the time.

        Args:
            model: A causal model (Llama-like, Qwen, GPT-2 ...), or the name or path of one.
            mask_token_id: Needed: that of the tokenizer, else an id that no text has, of a reserved token (SmolLM2's
                `<reponame>`), or a new one after `model.resize_token_embeddings(V + 1)`.
            shift: Whether the state at position i - 1 predicts token i, as in the causal model; False: the state at i.
            annealing_steps: Training passes in which attention grows from causal to full; None: full from the start.
            curve: With `place="hidden"` the last layers run on control points of a sentence curve; None: on tokens.
            backbone_kwargs: Passed to `AutoModelForCausalLM.from_pretrained` if `model` is a name or a path.
            config: `noise_schedule` and the other `CAUSAL_FIELDS`. If `model` is a name or a path, also `dtype` and
                the other `LOADING_ARGUMENTS`.
        Raises:
            ValueError: If the mask token is out of range or in use, a field is unknown or out of range, or the model
                does not follow a mask, or its logits are not its output matrix applied to its last hidden states.
        Source: Gong et al. 2024, "Scaling Diffusion Language Models via Adaptation from Autoregressive Models"
            (DiffuLLaMA); Ye et al. 2025, "Dream 7B", which keeps the shift and has no annealing.
        """
        fields, loading = split_fields(MdlmConfig, config, CAUSAL_FIELDS)
        loading |= backbone_kwargs or {}
        check_loading(loading, model)
        base = load_base(model, loading, "model")
        if isinstance(base, MadeFromCausal):
            raise ValueError("the model is a masked diffusion model already; with_curve gives it a curve")
        output_embedding(base)  # raises an error before anything is made
        check_mask_token(base, mask_token_id)
        own = {"mask_token_id": mask_token_id, "shift": shift, "annealing_steps": annealing_steps, "curve": curve}
        made: Any = cls(MdlmConfig(backbone=copy.deepcopy(base.config), dtype=base.dtype, **own, **fields), base)
        place_new_part(made, base, "reading")
        return made.train(base.training)


def check_mask_token(base: PreTrainedModel, mask_token_id: int | None) -> None:
    """Raise a ValueError if a causal model has no row for a mask token, or another use of it."""
    size = num_rows(base.get_input_embeddings())
    if not isinstance(mask_token_id, int) or not 0 <= mask_token_id < size:
        raise ValueError(
            f"mask_token_id must be in [0, {size - 1}], an id that no text has, got {mask_token_id}; take a reserved "
            f"token of the tokenizer, or add a row: model.resize_token_embeddings({size + 1}), then {size}"
        )
    for settings in (base.config.get_text_config(), getattr(base, "generation_config", None)):
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            used = getattr(settings, name, None)
            if mask_token_id in (used if isinstance(used, list) else [used]):
                raise ValueError(
                    f"mask_token_id must be an id that no text has, and {mask_token_id} is the model's {name}; take a "
                    f"reserved token, or add one: model.resize_token_embeddings({size + 1}), then {size}"
                )


@torch.no_grad()
def check_reading(model: Any) -> float | None:
    """Return the output scale of a model with a causal backbone, after trying its layers on tokens.

    Returns: None if the weights are not loaded yet: they cannot be tried.
    Raises:
        ValueError: If a position does not see the next one, or with a curve if some of the layers after the others do
            not give what all of them do.
    """
    backbone, reading = model.backbone, model.reading
    if backbone.config.is_encoder_decoder:
        raise ValueError(f"{type(backbone).__name__} has an encoder; choose a causal model")
    if (cap := soft_cap_of(backbone)) is not None:
        raise ValueError(
            f"{type(backbone).__name__} caps its logits at {cap}, which masked diffusion does not; choose another model"
        )
    scale = find_output_scale(backbone, read_causal, "input_ids")
    if scale is None:
        return None
    ids = torch.arange(8, device=execution_device(output_embedding(backbone))).expand(2, -1) % model.config.vocab_size
    ids = ids.clone()
    ids[1, -1] = 0
    base = backbone.base_model
    check_takes_masks(base.config, "attention to both sides")
    with without_dropout(model):
        try:
            whole = reading._call(base, None, None, input_ids=ids)[0]
            sees = not torch.equal(whole[0, 0], whole[1, 0])
        except (IndexError, RuntimeError, ValueError):  # OPT reads positions from the mask, Falcon ALiBi
            sees = False
        if not sees:
            raise ValueError(
                f"the layers of {type(backbone).__name__} do not attend as a mask says, so that no position sees the "
                "next; choose a Llama-like, Qwen or GPT-2 model"
            )
        if reading.curve is None:
            return scale
        first, last = split_layers(base, reading.num_token_layers)
        hidden = reading._call(first, None, None, input_ids=ids)[0]
        hidden = reading._call(last, None, None, inputs_embeds=hidden)[0]
        if (hidden - whole).abs().max() > rounding_of(output_embedding(backbone), whole):
            raise ValueError(
                f"a curve is put between layers, and {type(base).__name__} does more than run one after the other; "
                "choose a Llama-like, Qwen or GPT-2 model, or leave out curve"
            )
    return scale
