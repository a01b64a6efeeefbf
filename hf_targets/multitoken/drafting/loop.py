"""The drafting loop for batches and trees: each row keeps the accepted part of its draft and continues from there."""

from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from hf_targets.multitoken.drafting.cache import RaggedCache
from hf_targets.multitoken.drafting.chains import ChainDrafter
from hf_targets.multitoken.drafting.drafts import Draft, FuturePredictor, draft_tree, empty_draft
from hf_targets.multitoken.drafting.output import (
    DraftCounts,
    DraftedGenerationOutput,
    DraftedSeq2SeqOutput,
    drafted_output,
)
from hf_targets.multitoken.drafting.pace import Outcome, Pace
from hf_targets.multitoken.drafting.pass_inputs import PassInputs
from hf_targets.multitoken.drafting.rows import Rows
from hf_targets.multitoken.drafting.verification import Verified, verify


class DraftingModel(FuturePredictor, Protocol):
    """The model as the loop uses it: heads, `forward`, and methods of `GenerationMixin`."""

    config: Any
    dtype: torch.dtype

    def __call__(self, **inputs: Any) -> Any:
        """Read a chunk; the output has `logits`, `last_hidden_state` and `past_key_values`."""
        ...

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments of the call that reads a chunk."""
        ...

    def _prefill(self, input_ids: Tensor, generation_config: GenerationConfig, model_kwargs: dict) -> Any: ...


def decode_rows(
    model: DraftingModel,
    input_ids: Tensor,
    *,
    pace: Pace,
    max_positions: int | None,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    streamer: BaseStreamer | None,
    sources: list[Tensor] | None = None,
    **model_kwargs: Any,
) -> Tensor | DraftedGenerationOutput | DraftedSeq2SeqOutput:
    """Generate with drafts from prompts (batch, time) that are padded on the left; call `check_request` before.

    Args:
        pace: How far to draft at each pass.
        max_positions: Length in tokens of the longest text that the model can read; None: no limit.
        sources: Of an encoder-decoder model, the tokens of each row's source, if prompt lookup is to search them.
        model_kwargs: Arguments of `forward` that `generate` has prepared, among them the cache.
    Raises:
        ValueError: If the cache cannot be rearranged.
    """
    batch, is_pair = input_ids.shape[0], bool(model.config.is_encoder_decoder)
    given = PassInputs(model_kwargs, is_encoder_decoder=is_pair)
    mask = torch.ones_like(input_ids, dtype=torch.bool) if given.mask is None else given.mask.bool()
    lookup = config.prompt_lookup_num_tokens or 0
    scratch = pace.most.num_tokens + lookup + 1
    rows = Rows(input_ids, processors, criteria, config, streamer=streamer, scratch=scratch, sources=sources)
    drafter = ChainDrafter(
        model,
        config,
        processed=bool(processors),
        most_probable=pace.most.measured,
        after_source=sources is not None,
    )
    counts = DraftCounts()

    model_kwargs["past_key_values"].activate_past_recording()
    model_kwargs["output_last_hidden_state"] = True
    outputs = model._prefill(input_ids, config, model_kwargs)
    cache = RaggedCache(outputs.past_key_values, mask)
    logits, hidden = outputs.logits[:, -1:], outputs.last_hidden_state[:, -1:]
    draft, asked, started = empty_draft(batch, input_ids.device), None, 0.0
    active = torch.arange(batch, device=input_ids.device)
    position = given.last_positions(mask)
    shortest, dtype = input_ids.shape[1], model.dtype  # tokens of the row that is furthest behind
    del outputs
    while True:
        process = partial(rows.process, active)
        found = verify(draft, logits, process, sample=bool(config.do_sample), end_tokens=rows.end_tokens)
        taken, finished = rows.append(active, found)
        cache.keep(found.positions, taken)
        counts.forward_passes += 1
        outcome = None if asked is None else Outcome(asked, pace.now() - started, 1.0)
        if draft.depths:
            counts.accepted += int((taken - 1).sum())
            before, shortest = shortest, int(rows.lengths[active].min())
            if outcome is not None:
                outcome = replace(outcome, **_gains(draft, found, taken, rows.lengths[active] - before))
            hidden = hidden.take_along_dim(found.positions.gather(1, taken[:, None] - 1)[..., None], dim=1)
        else:
            shortest += 1
        num_read = len(active)
        hidden, position = hidden[:, 0], position + taken
        if finished.any():
            going = ~finished
            active, hidden, position = active[going], hidden[going], position[going]
            if len(active):
                cache.select(going)
                given.select(going)
                shortest = int(rows.lengths[active].min())
        rows.stream(active)
        if not len(active):
            break
        if outcome is not None:
            pace.record(num_read, outcome)
        settings, started = pace.choose(len(active)), pace.now()

        lengths = rows.lengths[active]
        next_tokens = rows.ids[active, lengths - 1]
        count, branches = min(settings.num_tokens, config.max_length - shortest - 1), settings.num_branches
        if max_positions is not None and count:
            # some backbones have no more cache slots than positions, and a tree takes a slot for each branch
            room = max_positions - cache.length - 1 - lookup
            count = min(count, room)
            branches = min(branches, room // max(count, 1))
        whole = (count, branches) == (settings.num_tokens, settings.num_branches)
        asked = settings if whole and pace.most.measured else None
        if branches > 1:
            draft = draft_tree(model, hidden, next_tokens, count, branches)
        else:
            texts = rows.texts(active) if drafter.reads_text else []
            least = pace.least_confidences(len(active))
            draft = drafter.draft(hidden, next_tokens, count, partial(rows.process, active), texts, least)
        counts.verifications += len(active)
        chunk, at = next_tokens[:, None], position[:, None]
        if draft.depths:
            counts.drafted += int(draft.exists.sum())
            chunk = torch.cat([chunk, draft.tokens], dim=1)
            at = at + torch.tensor([0, *draft.depths], device=chunk.device)
        inputs = given.of_pass(
            cache.mask_for(draft, dtype, tree=branches > 1),
            at,
            past_key_values=cache.cache,
            logits_to_keep=chunk.shape[1],
        )
        outputs = model(**model.prepare_inputs_for_generation(chunk, **inputs), return_dict=True)
        logits, hidden = outputs.logits, outputs.last_hidden_state
    if not config.return_dict_in_generate:
        return rows.sequences()
    output: dict[str, Any] = {
        "sequences": rows.sequences(),
        "scores": rows.scores(),
        "logits": rows.logits(),
        "past_key_values": cache.cache if batch == 1 else None,
    }
    return drafted_output(counts, is_encoder_decoder=is_pair, **output)


def _gains(draft: Draft, found: Verified, taken: Tensor, lengths: Tensor) -> dict[str, Any]:
    """Return what a pass with a draft brought, as `Outcome` names it.

    Args:
        taken: New tokens of each row.
        lengths: Tokens of each row beyond those that the shortest row had before.
    """
    told: dict[str, Any] = {"tokens": _progress(lengths, taken)}
    if draft.straight is not None:
        steps = torch.arange(1, found.positions.shape[1], device=taken.device)
        straight = draft.straight.gather(1, (found.positions[:, 1:] - 1).clamp(min=0))
        by_chain = 1 + (straight & (steps < taken[:, None])).sum(dim=1)
        told["as_chain"] = _progress(lengths - taken + by_chain, by_chain)
    elif draft.confidences:
        steps = torch.arange(1, len(draft.confidences) + 1, device=taken.device)
        told["confidences"] = draft.confidences
        told["accepted"] = (taken[:, None] > steps).float().mean(dim=0).tolist()
    return told


def _progress(lengths: Tensor, taken: Tensor) -> float:
    """Return the tokens by which a batch came nearer to its end, which is that of its last row.

    Over a text that is the gain of the last row, but at first all rows are last, and the one that takes the fewest
    tokens looks slower than it is. So the mean of all rows counts for a third.
    """
    return (2 * int(lengths.min()) + float(taken.float().mean())) / 3


def check_request(
    input_ids: Tensor, config: GenerationConfig, model_kwargs: dict[str, Any], *, is_encoder_decoder: bool = False
) -> None:
    """Check that the loop provides what `generate` was asked for.

    Raises:
        ValueError: If there is no text of token ids, a filled cache does not fit it or the rows, processes are kept in
            step, or an output is requested that the loop does not provide.
    """
    for name in ("synced_gpus",) if is_encoder_decoder else ("inputs_embeds", "synced_gpus"):  # a source may be embeds
        if model_kwargs.get(name) is not None and model_kwargs[name] is not False:
            raise ValueError(
                f"drafting for several rows, with branches or with custom stopping criteria does not take {name}; give "
                "input_ids in place of inputs_embeds and leave out synced_gpus, or give draft_tokens=0"
            )
    if config.output_attentions or config.output_hidden_states:
        raise ValueError(
            "with drafts, output_attentions and output_hidden_states are supported only for one row and a chain, "
            "without a filled cache or custom stopping criteria; leave them out, or give draft_tokens=0"
        )
    batch, prompt_length = input_ids.shape
    mask = PassInputs(model_kwargs, is_encoder_decoder=is_encoder_decoder).mask
    filled = model_kwargs["past_key_values"].get_seq_length()
    whole = mask.shape[1] if mask is not None else config._mask_length if filled else prompt_length
    if whole != prompt_length or filled >= prompt_length:
        raise ValueError(
            f"with a filled cache ({filled} positions) give the whole text, {whole} tokens a row of which at least one "
            f"is not in the cache, got {prompt_length}: processors, stopping criteria and drafts read all of it"
        )
    if filled and batch > 1:
        raise ValueError(
            "drafting for several rows cannot start from a filled cache, as it rearranges the rows; leave out "
            "past_key_values, or generate row by row"
        )
