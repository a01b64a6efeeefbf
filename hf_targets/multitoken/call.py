"""A call of a model whose heads predict the tokens after the next one: its loss and its logits."""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from torch import Tensor

from hf_targets.backbones.causal_call import CausalCall
from hf_targets.backbones.inputs import check_nll_weights
from hf_targets.backbones.output_matrix import OutputMap
from hf_targets.backbones.weight_access import num_rows
from hf_targets.maths.ensemble import mix_predictions
from hf_targets.maths.losses import ngram_weights
from hf_targets.multitoken.configuration import MultiTokenConfig
from hf_targets.multitoken.future import known_tokens, read_future, score
from hf_targets.multitoken.hidden_state_cache import HiddenStateCache, cache_of_text


def call_outputs(
    model: Any,
    call: CausalCall,
    weight: float | None,
    *,
    nll_weights: Sequence[float] | None,
    smoothing: float,
    skip_logits: bool | None,
    output_last_hidden_state: bool,
) -> tuple[Any, dict[str, Any]]:
    """Return the outputs of the backbone, and those of the model by their names.

    Args:
        model: With `backbone`, `heads` and `config`.
        weight: Lambda.
        smoothing: The share of the uniform distribution in the targets of the loss.
    """
    output = OutputMap.of(model.backbone, model.config.output_scale)
    call.check_ids(num_rows(output.layer))
    check_nll_weights(nll_weights, has_labels=call.scored)
    if weight and call.past_key_values is not None:
        own = cache_of_text(call.past_key_values)
        HiddenStateCache.check(own)
        if call.scored and own.get_seq_length():
            raise ValueError(
                f"an ensemble scores labels of whole sequences only, got {own.get_seq_length()} positions in a "
                "cache; leave out past_key_values or labels"
            )
    outputs = call.read(model.backbone)
    hidden: Tensor = outputs[0]
    targets = call.targets()
    future, exists, total, sums = [], [], None, []
    if call.scored or weight:
        cache = outputs.get("past_key_values") if weight else None
        known = known_tokens(
            cast(MultiTokenConfig, model.config), call, hidden, None if cache is None else cache_of_text(cache)
        )
        # a single call with a gradient: with several, FSDP may lose the gradient of a tied matrix
        read = partial(read_future, model.heads, output)
        loss_weights = ngram_weights(model.config.ngram_size - 1, model.config.loss_weight)
        future, exists, total, sums = output.inside(read, *known, targets, loss_weights, smoothing)

    loss = loss_parts = nlls = logits = None
    if targets is not None:
        assert total is not None
        count = call.count(targets)
        loss = total / count
        loss_parts = {f"head_{n}" if n else "next_token": part / count for n, part in enumerate(sums)}
        if nll_weights is not None:
            nlls = score(output, hidden, future, exists, targets, nll_weights)
    if call.wants_logits(skip_logits, training=model.training):
        mixed = mix_predictions(hidden, future, exists, weight) if weight else hidden
        logits = output(mixed[:, call.kept])
    return outputs, {
        "loss": loss,
        "loss_parts": loss_parts,
        "logits": logits,
        "nlls": nlls,
        "last_hidden_state": hidden if output_last_hidden_state else None,
        "past_key_values": outputs.get("past_key_values"),
    }
