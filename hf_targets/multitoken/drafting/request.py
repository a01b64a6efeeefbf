"""What the drafting loop provides of what `generate` may be asked for."""

import inspect
import logging
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, GenerationConfig, PreTrainedModel, StaticCache
from transformers.cache_utils import LinearAttentionCacheLayerMixin
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

from hf_targets.backbones.generation import takes_shifted_rows, tried
from hf_targets.backbones.weight_access import execution_device, is_sharded
from hf_targets.multitoken.drafting.cache import check_layers, has_state
from hf_targets.multitoken.drafting.pass_inputs import PassInputs
from hf_targets.multitoken.hidden_state_cache import cache_of_text

LEARNT_PROMPTS = "prompts that peft has learnt stand before the text, where drafts do not look"

logger = logging.getLogger(__name__)


def can_draft(
    model: PreTrainedModel,
    input_ids: Tensor,
    config: GenerationConfig,
    criteria: StoppingCriteriaList,
    given: dict[str, Any],
    *,
    auto: bool,
) -> bool:
    """Return whether to draft: False if "auto" cannot, which a log line says; others raise what `check_request` does.

    Args:
        given: Arguments of `forward` that `generate` has prepared.
    """
    try:
        if given.get("synced_gpus"):
            raise ValueError("drafts do not support synced_gpus=True; leave it out, or decode without drafts")
        check_request(model, input_ids, config, given)
        if auto:
            _check_auto(model, input_ids, config, criteria)
    except ValueError as error:
        if not auto:
            raise
        logger.info("Decoding without drafts: %s.", error)
        return False
    return True


def _check_auto(
    model: PreTrainedModel, input_ids: Tensor, config: GenerationConfig, criteria: StoppingCriteriaList
) -> None:
    """Raise an error if drafts that are not always made would change the text."""
    simple = all(type(criterion) in (EosTokenCriteria, MaxLengthCriteria) for criterion in criteria)
    if len(input_ids) > 1 and (config.do_sample or not simple):
        raise ValueError("several rows that are sampled or have stopping criteria of their own would differ")
    if config.do_sample and not simple:
        raise ValueError("a sampled text with stopping criteria of its own would draw after its end")
    if is_sharded(model):
        raise ValueError("the processes that share the weights must take equal passes, and their clocks differ")


def check_request(model: PreTrainedModel, input_ids: Tensor, config: GenerationConfig, given: dict[str, Any]) -> None:
    """Raise a ValueError if the loop does not provide what `generate` was asked for."""
    if getattr(model.prepare_inputs_for_generation, "__self__", model) is not model:
        raise ValueError(f"{LEARNT_PROMPTS}; decode without drafts")
    inputs, backbone = PassInputs(model, given), getattr(model, "backbone", model)
    if not {"past_key_values", "cache_params"} & inspect.signature(backbone.forward).parameters.keys():
        raise ValueError(
            f"drafting needs a model with a key-value cache, which {type(backbone).__name__} does not take"
        )
    cache, own = inputs.cache, None if inputs.cache is None else cache_of_text(inputs.cache)
    if not config.use_cache or not isinstance(own, DynamicCache | StaticCache) or own.offloading:
        kind = type(own).__name__ if config.use_cache and own is not None else "none"
        kind = "an offloaded one" if config.use_cache and getattr(own, "offloading", False) else kind
        cause = "cache_implementation" if config.use_cache else "use_cache=False"
        raise ValueError(f"drafting takes a DynamicCache or a StaticCache in memory, got {kind}; leave out {cause}")
    check_layers(cache)
    if has_state(own) and not tried(model, "state", lambda: continues_state(model)):
        raise ValueError(
            "drafting needs a model that reads several tokens on from the state in its cache, and "
            f"{type(model).__name__} does not; decode without drafts"
        )
    others = ("assistant_ensemble_weight", "assistant_early_exit", "use_mtp")
    told = {name: getattr(config, name, None) for name in (*others, "output_attentions", "output_hidden_states")}
    told["guidance_scale"] = None if config.guidance_scale == 1 else config.guidance_scale
    for name in (name for name, value in told.items() if value):
        raise ValueError(f"{name} cannot be combined with drafts; leave out one of them")
    for name, what in (("phrases", "phrases"), ("written", "retrieve")):
        if given.get(name) is not None:  # they read the whole text at each step
            raise ValueError(f"{what} cannot be combined with drafts; leave out one of them")
    if (positions := inputs.positions) is not None and positions.ndim != 2:
        raise ValueError(f"drafts take positions (batch, time), and {type(model).__name__} has several of each token")
    is_pair, batch, length = inputs.has_source, *input_ids.shape
    embeds = None if is_pair else given.get("inputs_embeds")
    length = length if embeds is None else embeds.shape[1]
    mask, filled = inputs.mask, _num_cached(own)
    whole = mask.shape[1] if mask is not None else config._mask_length if filled else length
    if whole != length or filled >= length:
        raise ValueError(
            f"with a filled cache ({filled} positions) give the whole text, {whole} tokens a row of which at least "
            f"one is not in the cache, got {length}"
        )
    if filled and batch > 1:
        raise ValueError("drafting for several rows cannot start from a filled cache; generate row by row")
    moves = batch > 1 and not has_state(own)  # rows with a state remain in step
    if moves and (is_pair or not inputs.takes_positions) and not takes_shifted_rows(backbone):
        raise ValueError(
            f"drafting for several rows needs a decoder that takes positions or reads distances, and that of "
            f"{type(backbone).__name__} does neither; generate row by row"
        )


@torch.no_grad()
def continues_state(model: PreTrainedModel) -> bool:
    """Return whether a model reads several tokens on from the state in its cache, tried on three tokens.

    Mamba 1 and what is built of it read more than one token from an empty state.
    """
    config, ids = model.config.get_text_config(decoder=True), torch.arange(1, 4, device=execution_device(model))[None]
    states = []
    for parts in ((ids,), (ids[:, :1], ids[:, 1:])):
        given = PassInputs(model, {})
        cache, first = DynamicCache(config=config), 0
        for part in parts:
            positions = torch.arange(first, first + part.shape[1], device=ids.device)[None]
            model(part, use_cache=True, **given.of_pass(None, positions, cache))
            first += part.shape[1]
        layers: list[Any] = [layer for layer in cache.layers if isinstance(layer, LinearAttentionCacheLayerMixin)]
        states.append([one for layer in layers for one in layer.recurrent_states.values() if one is not None])
    same = all(torch.allclose(*pair, rtol=0.05, atol=0.05 * float(pair[0].std())) for pair in zip(*states, strict=True))
    return same and cache.has_previous_state()  # RecurrentGemma does not read the cache


def _num_cached(cache: Cache) -> int:
    """Return how many tokens a cache holds; one of states alone does not count them, and is to be empty."""
    if not cache.layers or not all(cache.is_linear):
        return int(cache.get_seq_length())  # of a static cache it is a tensor
    if cache.has_previous_state():
        raise ValueError("a cache of states alone does not tell how much it has read; start with a new cache")
    return 0
