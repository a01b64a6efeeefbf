"""The drafting loop: each row keeps the accepted part of its draft and continues from there."""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# (the model also has the methods of GenerationMixin)

import logging
from collections import Counter
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from hf_targets.backbones.encoder_decoder import decoder_positions
from hf_targets.backbones.generation import has_window
from hf_targets.backbones.positions import max_positions
from hf_targets.multitoken.drafting.assistant import AssistantDrafts
from hf_targets.multitoken.drafting.auto import AutoDrafts
from hf_targets.multitoken.drafting.cache import MOST_PENDING, ragged_cache, widen_windows
from hf_targets.multitoken.drafting.drafts import Draft, DraftSettings, draft_chain_as_text, draft_tree, empty_draft
from hf_targets.multitoken.drafting.lookup import Found, Lookup, extended, for_half
from hf_targets.multitoken.drafting.mtp import MtpCache
from hf_targets.multitoken.drafting.outputs import DraftCounts, with_counts
from hf_targets.multitoken.drafting.rows import PassInputs, Rows
from hf_targets.multitoken.drafting.verification import verify
from hf_targets.multitoken.model import MultiTokenModel

logger = logging.getLogger(__name__)


class DraftingLoop:
    """Generation with drafts from prompts (batch, time) that are padded on the left.

    Args:
        model: One with heads, or any other.
        model_kwargs: Arguments of `forward` that `generate` has prepared, among them the cache.
        lookup: What is looked up; None: nothing.
        settings: How far the heads draft; None: not at all.
        auto: What decides what each pass drafts; None: as the settings say.
        assistant: What drafts in place of heads.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        model_kwargs: dict[str, Any],
        streamer: BaseStreamer | None,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        lookup: Lookup | None,
        settings: DraftSettings | None = None,
        auto: AutoDrafts | None = None,
        assistant: AssistantDrafts | None = None,
    ) -> None:
        self.settings = settings = DraftSettings(0) if settings is None else settings
        self.model, self.auto, self.config, self.lookup = model, auto, config, lookup
        self.counts, self._assistant = DraftCounts(), assistant
        self._heads = model if isinstance(model, MultiTokenModel) else None
        scratch = settings.num_tokens + (0 if lookup is None else lookup.num_tokens) + 1
        self._rows = Rows(input_ids, processors, criteria, config, streamer=streamer, scratch=scratch)
        self._processed = bool(processors)
        self._given = PassInputs(model, model_kwargs)
        self._active = torch.arange(len(input_ids), device=input_ids.device)
        self._kind = "plain"
        self._kinds: Counter[str] = Counter()

    def run(self, input_ids: Tensor) -> Any:
        """Generate, and return the output of `generate`."""
        self._read_prompt(input_ids)
        with self.counts.timed("all"):
            while len(self._active):
                finished = self._take_verified()
                self._drop(finished)
                if len(self._active):
                    with self.counts.timed("drafts"):
                        self._draft = self._make_draft()
                    self._read_draft()
        if self._mtp is not None:
            self._mtp.end()
        if self.auto is not None:
            costs = {name: kind.cost for name, kind in self.auto.kinds.items() if kind.cost is not None}
            logger.info("Passes by what they drafted: %s; the longest draft costs, in passes: %s", self._kinds, costs)
        rows = self._rows
        if not self.config.return_dict_in_generate:
            return rows.sequences()
        cache = self._cache.cache if len(input_ids) == 1 else None
        fields = {
            "sequences": rows.sequences(), "scores": rows.scores(), "logits": rows.logits(), "past_key_values": cache,
        }  # fmt: skip
        return with_counts(fields, self.counts, is_encoder_decoder=self._given.has_source)

    def _read_prompt(self, input_ids: Tensor) -> None:
        given = self._given.given
        self._given.cache.activate_past_recording()
        if self._heads is not None:
            given["output_last_hidden_state"] = True
        prompt = given.get("inputs_embeds", input_ids) if not self._given.has_source else input_ids
        widen_windows(self._given.cache, self._rows.max_length + prompt.shape[1] - input_ids.shape[1] - 1)
        outputs = self.model._prefill(input_ids, self.config, given)
        if not self._given.has_source:
            given.pop("inputs_embeds", None)
        mask = self._given.mask
        mask = torch.ones(prompt.shape[:2], dtype=torch.bool, device=prompt.device) if mask is None else mask.bool()
        cache, self._mtp = outputs[self._given.cache_name], None
        hidden: Any = None if self._heads is None else outputs.last_hidden_state
        if self._heads is not None and self._heads.config.head == "mtp" and self.settings.num_tokens:
            self._mtp = MtpCache(cache, mask, self._heads, self.settings.num_tokens, hidden, input_ids)
        backbone: Any = getattr(self.model, "backbone", self.model)
        gaps = PassInputs(backbone, {}).takes_positions and not has_window(backbone)  # T5's distances are of indices
        self._cache = self._mtp or ragged_cache(cache, mask, gaps=gaps)
        limits = max_positions(self.model.config), self._cache.longest
        self._longest = min((limit for limit in limits if limit is not None), default=None)
        self._logits, self._hidden = outputs.logits[:, -1:], None if hidden is None else hidden[:, -1:]
        self._draft, self._whole = empty_draft(len(input_ids), input_ids.device), False
        self._position = self._given.last_positions(mask)

    def _take_verified(self) -> Tensor:
        """Append what the last pass verified to the rows, and return which of them are finished."""
        draft, process = self._draft, partial(self._rows.process, self._active)
        sample, ends = bool(self.config.do_sample), self._rows.end_tokens
        found = verify(draft, self._logits, process, sample=sample, end_tokens=ends)
        if self._cache.in_step:
            found.counts = found.counts.min().expand_as(found.counts)
        taken, finished = self._rows.append(self._active, found)
        self._cache.keep(found.positions, taken)
        last = found.positions.gather(1, taken[:, None] - 1)
        if self._hidden is not None:
            self._hidden = self._hidden.take_along_dim(last[..., None], dim=1)[:, 0]
        self._position = self._position + taken
        new = torch.cat([self._active[:, None], taken[:, None], found.tokens], dim=1).tolist()  # one transfer
        if draft.depths:
            self.counts.accept([count - 1 for _, count, *_ in new], draft.origins)
        if self.auto is not None and self.counts.num_forward_passes:
            self._tell_auto(self.auto, taken)
        if self.lookup is not None:
            with self.counts.timed("drafts"):
                for row, count, *tokens in new:
                    self.lookup.texts[row].extend(tokens[:count])
        self.counts.num_forward_passes += 1
        return finished

    def _tell_auto(self, auto: AutoDrafts, taken: Tensor) -> None:
        """Tell what the last pass brought, of which each row took so many tokens."""
        lengths = self._rows.lengths[self._active]
        shortest = int(lengths.min()) - int((lengths - taken).min())
        gained = (2 * shortest + float(taken.float().mean())) / 3 - 1
        auto.record(self._kind, len(self._draft.depths), gained, whole=self._whole)

    def _drop(self, finished: Tensor) -> None:
        """Continue without the rows that are finished."""
        if finished.any():
            going = ~finished
            self._active, self._position = self._active[going], self._position[going]
            self._hidden = None if self._hidden is None else self._hidden[going]
            if len(self._active):
                self._cache.select(going)
                self._given.select(going)
        self._rows.stream(self._active)

    def _make_draft(self) -> Draft:
        active, rows, branches, lookup = self._active, self._rows, self.settings.num_branches, self.lookup
        most = self.config.max_length - int(rows.lengths[active].min()) - 1  # pyright: ignore
        if self._longest is not None:
            # some backbones have no more cache slots than positions, and a tree takes a slot for each branch
            room = self._longest - self._cache.length - self._cache.pending - 1
            if room < most:
                self._cache.align()
                room = self._longest - self._cache.length - self._cache.pending - 1
            most = min(most, room)
            branches = min(branches, room // max(min(self.settings.num_tokens, most), 1))
        if self._cache.pending > MOST_PENDING:
            most = 0
        asked, found = self.settings.num_tokens, []
        if self.auto is not None and lookup is not None:
            found = self._in_step([lookup.find(row, most) for row in active.tolist()])
            half = for_half(found, [0] * len(active), 0)
            self._kind = self.auto.choose(found=max(len(one.tokens) for one in half), several=len(active) > 1)
            self._kinds[self._kind] += 1
            asked = self.auto.num_tokens.get(self._kind, 0)
        count = 0 if self._kind == "lookup" else min(asked, most)
        draft = self._draft_of_heads(count, branches)
        kept = draft.num_sure or [0] * len(active)
        if lookup is not None and self.auto is None:
            sure = [tokens[:sure] for tokens, sure in zip(draft.tokens.tolist(), kept, strict=True)]
            known = zip(active.tolist(), sure, strict=True)
            found = self._in_step([lookup.find(row, most - len(tokens), tokens) for row, tokens in known])
        if self.auto is None or self._kind == "lookup" or (self._kind == "heads" and len(active) > 1):
            found = for_half(found, kept, draft.tokens.shape[1]) if found else found
            draft = extended(draft, found, kept) if any(one.tokens for one in found) else draft
        self._whole = len(active) == len(rows.lengths)
        return draft

    def _in_step(self, found: list[Found]) -> list[Found]:
        """Return what was found; of rows in step as much as for the one with least, as no row keeps more."""
        if not self._cache.in_step:
            return found
        shortest = min(len(one.tokens) for one in found)
        return [one._replace(tokens=one.tokens[:shortest]) for one in found]

    def _draft_of_heads(self, count: int, branches: int) -> Draft:
        active, config = self._active, self.config
        if self._assistant is not None and count > 0:
            return self._assistant.draft(self._rows.ids[active], self._rows.lengths[active], active, count)
        if self._heads is None or self._hidden is None or count < 1:
            return empty_draft(len(active), active.device)
        known = self._heads, self._hidden, self._rows.last_tokens(active)[:, 0], count
        if branches > 1:
            return draft_tree(*known, branches)
        threshold = 0.4 if config.assistant_confidence_threshold is None else config.assistant_confidence_threshold
        return draft_chain_as_text(
            *known,
            partial(self._rows.process, active),
            sample=bool(config.do_sample) and self.auto is None,
            processed=self._processed,
            threshold=None if self.lookup is None or self.auto is not None else threshold,
            read=None if self._mtp is None else self._mtp.logits,
        )

    def _read_draft(self) -> None:
        """Read the last known token of each row and its draft."""
        draft, rows = self._draft, self._rows
        pending, num_logits = self._cache.pending, 1 + draft.tokens.shape[1]
        chunk = rows.last_tokens(self._active, pending + 1)
        self.counts.num_verifications += len(self._active)
        if draft.depths:
            self.counts.num_drafted_tokens += int(draft.exists.sum())
            chunk = torch.cat([chunk, draft.tokens], dim=1)
        at = self._position[:, None] + torch.tensor([*range(-pending, 1), *draft.depths], device=chunk.device)
        mask = self._cache.mask_for(draft, self.model.dtype, tree=draft.is_tree)
        given = self._given
        inputs = self.model.prepare_inputs_for_generation(chunk, **given.of_pass(mask, at, self._cache.cache))
        if "logits_to_keep" in inputs:  # `generate` or the model puts it there if the model takes it
            inputs["logits_to_keep"] = num_logits
        by_index = at if given.has_source and not given.takes_positions else None
        with decoder_positions(self.model, by_index), self.counts.timed("passes"):
            outputs = self.model(**inputs, return_dict=True)
        self._logits = outputs.logits[:, -num_logits:]
        self._hidden = None if self._heads is None else outputs.last_hidden_state
        if self._mtp is not None:
            self._mtp.extend(outputs.last_hidden_state, chunk)
