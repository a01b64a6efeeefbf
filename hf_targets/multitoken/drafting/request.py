"""What the drafting loop provides of what `generate` may be asked for."""

from typing import Any, cast

from torch import Tensor
from transformers import DynamicCache, GenerationConfig, PreTrainedModel

from hf_targets.backbones.generation import takes_shifted_rows
from hf_targets.multitoken.drafting.cache import check_layers
from hf_targets.multitoken.drafting.rows import PassInputs
from hf_targets.multitoken.hidden_state_cache import cache_of_text

LEARNT_PROMPTS = "prompts that peft has learnt stand before the text, where drafts do not look"


def check_request(model: PreTrainedModel, input_ids: Tensor, config: GenerationConfig, given: dict[str, Any]) -> None:
    """Raise a ValueError if the loop does not provide what `generate` was asked for."""
    if getattr(model.prepare_inputs_for_generation, "__self__", model) is not model:
        raise ValueError(f"{LEARNT_PROMPTS}; decode without drafts")
    cache: Any = given.get("past_key_values")
    own: Any = None if cache is None else cache_of_text(cache)
    if not config.use_cache or not isinstance(own, DynamicCache) or own.offloading:
        kind = type(own).__name__ if config.use_cache and own is not None else "none"
        cause = "cache_implementation" if config.use_cache else "use_cache=False"
        raise ValueError(f"drafting takes a DynamicCache in memory, got {kind}; leave out {cause}")
    check_layers(cast(Any, cache))
    others = ("assistant_ensemble_weight", "assistant_early_exit", "use_mtp")
    told = {name: getattr(config, name, None) for name in (*others, "output_attentions", "output_hidden_states")}
    told["guidance_scale"] = None if config.guidance_scale == 1 else config.guidance_scale
    for name in (name for name, value in told.items() if value):
        raise ValueError(f"{name} cannot be combined with drafts; leave out one of them")
    for name, what in (("phrases", "phrases"), ("written", "retrieve")):
        if given.get(name) is not None:  # they read the whole text at each step
            raise ValueError(f"{what} cannot be combined with drafts; leave out one of them")
    inputs, backbone = PassInputs(model, given), getattr(model, "backbone", model)
    if (positions := inputs.positions) is not None and positions.ndim != 2:
        raise ValueError(f"drafts take positions (batch, time), and {type(model).__name__} has several of each token")
    is_pair, batch, length = inputs.has_source, *input_ids.shape
    embeds = None if is_pair else given.get("inputs_embeds")
    length = length if embeds is None else embeds.shape[1]
    mask, filled = inputs.mask, cast(Any, cache).get_seq_length()
    whole = mask.shape[1] if mask is not None else config._mask_length if filled else length
    if whole != length or filled >= length:
        raise ValueError(
            f"with a filled cache ({filled} positions) give the whole text, {whole} tokens a row of which at least "
            f"one is not in the cache, got {length}"
        )
    if filled and batch > 1:
        raise ValueError("drafting for several rows cannot start from a filled cache; generate row by row")
    if batch > 1 and (is_pair or not inputs.takes_positions) and not takes_shifted_rows(backbone):
        raise ValueError(
            f"drafting for several rows needs a decoder that takes positions or reads distances, and that of "
            f"{type(backbone).__name__} does neither; generate row by row"
        )
