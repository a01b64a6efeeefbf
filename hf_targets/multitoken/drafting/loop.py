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
from hf_targets.multitoken.drafting.attention import grouped_queries
from hf_targets.multitoken.drafting.auto import AutoDrafts
from hf_targets.multitoken.drafting.cache import MOST_PENDING, ragged_cache, widen_windows
from hf_targets.multitoken.drafting.drafts import (
    Draft,
    DraftSettings,
    Found,
    draft_chain_as_text,
    draft_tree,
    empty_draft,
)
from hf_targets.multitoken.drafting.lookup import Lookup, beside, extended, for_half
from hf_targets.multitoken.drafting.mtp import MtpCache
from hf_targets.multitoken.drafting.outputs import DraftCounts, with_counts
from hf_targets.multitoken.drafting.pass_inputs import PassInputs
from hf_targets.multitoken.drafting.rows import NewTokens, Rows
from hf_targets.multitoken.drafting.verification import verify
from hf_targets.multitoken.model import MultiTokenModel

logger = logging.getLogger(__name__)


class DraftingLoop:
    """Generation with drafts from prompts (batch, time) that are padded on the left.

    Args:
        model: One with heads, or any other.
        model_kwargs: Arguments of `forward` that `generate` has prepared, among them the cache.
        lookup: What is looked up; None: nothing.
        settings: How far the heads, or the assistant, draft; None: not at all.
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
        self._rows = Rows(input_ids, processors, criteria, config, streamer=streamer)
        self._given = PassInputs(model, model_kwargs)
        self._kind = "plain"
        self._kinds: Counter[str] = Counter()

    def run(self, input_ids: Tensor) -> Any:
        """Generate, and return the output of `generate`."""
        self._read_prompt(input_ids)
        with self.counts.timed("all"):
            while self._rows.numbers:
                new = self._take_verified()
                self._drop([not row.ended for row in new])
                if self._rows.numbers:
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
        of_speech = getattr(self.model.config.get_text_config(), "max_target_positions", None)  # Whisper's name of it
        limits = max_positions(self.model.config), of_speech, self._cache.longest
        self._longest = min((limit for limit in limits if limit is not None), default=None)
        self._logits, self._hidden = outputs.logits[:, -1:], None if hidden is None else hidden[:, -1:]
        self._draft, self._whole = empty_draft(len(input_ids), input_ids.device), False
        self._position = self._given.last_positions(mask)

    def _take_verified(self) -> list[NewTokens]:
        """Append what the last pass verified to the rows, and return it."""
        draft, rows = self._draft, self._rows
        sample, ends = bool(self.config.do_sample), rows.end_tokens
        stops = sample or self._logits.is_cpu or bool(rows.processors)
        found = verify(draft, self._logits, rows.process, sample=sample, end_tokens=ends, to_the_end=not stops)
        if self._cache.in_step:
            found.counts = found.counts.min().expand_as(found.counts)
        shortest = min(rows.known_lengths[row] for row in rows.numbers)
        taken, new = rows.append(found)
        counts = [len(row.tokens) for row in new]
        self._cache.keep(found.positions, taken, counts)
        last = found.positions.gather(1, taken[:, None] - 1)
        if self._hidden is not None:
            self._hidden = self._hidden.take_along_dim(last[..., None], dim=1)[:, 0]
        self._position = self._position + taken
        self.counts.num_drafted_tokens += sum(row.num_drafted for row in new)
        if draft.depths:
            self.counts.accept(draft, [row.tokens[:-1] for row in new])
        if self.auto is not None and self.counts.num_forward_passes:
            nearer = min(rows.known_lengths[row] for row in rows.numbers) - shortest
            gained = (2 * nearer + sum(counts) / len(counts)) / 3 - 1
            self.auto.record(self._kind, len(draft.depths), gained, whole=self._whole)
        if self.lookup is not None:
            with self.counts.timed("drafts"):
                for row, one in zip(rows.numbers, new, strict=True):
                    self.lookup.texts[row].extend(one.tokens)
        self.counts.num_forward_passes += 1
        return new

    def _drop(self, going: list[bool]) -> None:
        """Continue with these rows alone."""
        if not all(going):
            self._rows.drop(going)
            if any(going):
                kept = torch.tensor(going, device=self._position.device)
                self._position = self._position[kept]
                self._hidden = None if self._hidden is None else self._hidden[kept]
                self._cache.select(kept)
                self._given.select(kept)
        self._rows.stream()

    def _make_draft(self) -> Draft:
        rows, branches, lookup = self._rows, self.settings.num_branches, self.lookup
        most = rows.max_length - min(rows.known_lengths[row] for row in rows.numbers) - 1
        room = most
        if self._longest is not None:  # some backbones have no more cache slots than positions
            room = self._longest - self._cache.length - self._cache.pending - 1
            if room < most:
                self._cache.align()
                room = self._longest - self._cache.length - self._cache.pending - 1
            most = min(most, room)
        if self._cache.pending > MOST_PENDING:
            most = 0
        asked, found = self.settings.num_tokens, []
        if lookup is not None and (self.auto is not None or branches > 1):
            found = self._in_step([lookup.find(row, most) for row in rows.numbers])
        if self.auto is not None:
            half = for_half(found, [0] * len(found), 0)
            self._kind = self.auto.choose(found=max(len(one.tokens) for one in half), several=len(found) > 1)
            self._kinds[self._kind] += 1
            asked = asked if self._kind in ("heads", "tree") else 0
            branches = branches if self._kind == "tree" else 1
            if self._kind == "plain" or (asked and branches == len(found) == 1):
                found = []
        count = min(asked, most)
        nodes = self.settings.num_nodes
        if self._longest is not None:  # a tree takes a slot for each node
            nodes = min(nodes, room - max((len(one.tokens) for one in found), default=0))
        draft = self._draft_of_heads(count, branches if nodes > 0 else 1, nodes)
        kept = draft.num_sure or [0] * len(rows.numbers)
        if lookup is not None and self.auto is None and not draft.is_tree:
            tokens = draft.tokens.tolist() if any(kept) else [[]] * len(kept)
            known = zip(rows.numbers, [row[:sure] for row, sure in zip(tokens, kept, strict=True)], strict=True)
            found = self._in_step([lookup.find(row, most - len(tokens), tokens) for row, tokens in known])
        found = for_half(found, kept, max(draft.depths, default=0)) if found else found
        if any(one.tokens for one in found):
            draft = beside(draft, found) if draft.is_tree else extended(draft, found, kept)
        self._whole = len(rows.numbers) == len(rows.known_lengths)
        return draft

    def _in_step(self, found: list[Found]) -> list[Found]:
        """Return what was found; of rows in step as much as for the one with least, as no row keeps more."""
        if not self._cache.in_step:
            return found
        shortest = min(len(one.tokens) for one in found)
        return [one._replace(tokens=one.tokens[:shortest]) for one in found]

    def _draft_of_heads(self, count: int, branches: int, nodes: int) -> Draft:
        rows, config = self._rows, self.config
        if self._assistant is not None and count > 0:
            return self._assistant.draft(rows.ids[rows.active], rows.lengths[rows.active], rows.active, count)
        if self._heads is None or self._hidden is None or count < 1:
            return empty_draft(len(rows.active), rows.active.device)
        known = self._heads, self._hidden, rows.last_tokens()[:, 0], count
        if branches > 1:
            return draft_tree(*known, branches, nodes)
        threshold = 0.4 if config.assistant_confidence_threshold is None else config.assistant_confidence_threshold
        return draft_chain_as_text(
            *known,
            partial(rows.process, processors=rows.draft_processors),
            sample=bool(config.do_sample) and self.auto is None,
            processed=bool(rows.draft_processors),
            threshold=None if self.lookup is None or self.auto is not None else threshold,
            read=None if self._mtp is None else self._mtp.logits,
        )

    def _read_draft(self) -> None:
        """Read the last known token of each row and its draft."""
        draft, rows = self._draft, self._rows
        pending, num_logits = self._cache.pending, 1 + draft.tokens.shape[1]
        chunk = torch.cat([rows.last_tokens(pending + 1), draft.tokens], dim=1)
        self.counts.num_verifications += len(chunk)
        steps = torch.arange(-pending, num_logits, device=chunk.device)
        if draft.is_tree:
            steps[pending + 1 :] = torch.tensor(draft.depths)
        at = self._position[:, None] + steps
        mask = self._cache.mask_for(draft, self.model.dtype)
        given = self._given
        inputs = self.model.prepare_inputs_for_generation(chunk, **given.of_pass(mask, at, self._cache.cache))
        if "logits_to_keep" in inputs:  # `generate` or the model puts it there if the model takes it
            inputs["logits_to_keep"] = num_logits
        by_index = at if given.has_source and not given.takes_positions else None
        with decoder_positions(self.model, by_index), grouped_queries(), self.counts.timed("passes"):
            outputs = self.model(**inputs, return_dict=True)
        self._logits = outputs.logits[:, -num_logits:]
        self._hidden = None if self._heads is None else outputs.last_hidden_state
        if self._mtp is not None:
            self._mtp.extend(outputs.last_hidden_state, chunk)
