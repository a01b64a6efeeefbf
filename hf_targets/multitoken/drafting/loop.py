"""The drafting loop: each row keeps the accepted part of its draft and continues from there."""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# (the model also has the methods of GenerationMixin)

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from hf_targets.multitoken.drafting.auto import AutoDrafts
from hf_targets.multitoken.drafting.cache import RaggedCache
from hf_targets.multitoken.drafting.chains import ChainDrafter, TextIndex, draft_of
from hf_targets.multitoken.drafting.drafts import Draft, DraftSettings, draft_tree, empty_draft
from hf_targets.multitoken.drafting.mtp import MtpCache
from hf_targets.multitoken.drafting.rows import PassInputs, Rows
from hf_targets.multitoken.drafting.verification import verify
from hf_targets.multitoken.model import MultiTokenModel


@dataclass
class DraftCounts:
    """Running counts; `DraftedGenerationOutput` defines each."""

    num_forward_passes: int = 0
    num_verifications: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0


class DraftingLoop:
    """Generation with drafts from prompts (batch, time) that are padded on the left.

    Args:
        settings: How far to draft.
        auto: What decides what each pass drafts; None: as the settings say.
        max_positions: Length in tokens of the longest text that the model can read; None: no limit.
        sources: Of an encoder-decoder model, the tokens of each row's source, if prompt lookup is to search them.
        model_kwargs: Arguments of `forward` that `generate` has prepared, among them the cache.
    """

    def __init__(
        self,
        model: MultiTokenModel,
        input_ids: Tensor,
        settings: DraftSettings,
        auto: AutoDrafts | None,
        *,
        max_positions: int | None,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        streamer: BaseStreamer | None,
        sources: list[Tensor] | None,
        model_kwargs: dict[str, Any],
    ) -> None:
        self.model, self.settings, self.auto, self.config = model, settings, auto, config
        self.counts = DraftCounts()
        self._lookup = 0 if auto is not None else config.prompt_lookup_num_tokens or 0
        self._longest = max_positions
        scratch = (settings.num_tokens + self._lookup if auto is None else max(auto.num_tokens.values())) + 1
        self._rows = Rows(input_ids, processors, criteria, config, streamer=streamer, scratch=scratch, sources=sources)
        self._drafter = ChainDrafter(
            model,
            config,
            processed=bool(processors),
            most_probable=auto is not None,
            after_source=sources is not None,
        )
        self._given = PassInputs(model_kwargs, is_encoder_decoder=bool(model.config.is_encoder_decoder))
        self._active = torch.arange(len(input_ids), device=input_ids.device)
        self._kind, self._indices = "plain", []
        if auto is not None:
            size = config.max_matching_ngram_size or 2
            self._indices = [TextIndex(text[0].tolist(), size) for text in self._rows.texts(self._active)]

    def run(self, input_ids: Tensor) -> dict[str, Any]:
        """Generate, and return the fields of the output of `generate`."""
        self._read_prompt(input_ids)
        while len(self._active):
            finished = self._take_verified()
            self._drop(finished)
            if len(self._active):
                self._draft = self._make_draft()
                self._read_draft()
        if self._mtp is not None:
            self._mtp.end()
        rows = self._rows
        cache = self._cache.cache if len(input_ids) == 1 else None
        return {
            "sequences": rows.sequences(), "scores": rows.scores(), "logits": rows.logits(), "past_key_values": cache,
        }  # fmt: skip

    def _read_prompt(self, input_ids: Tensor) -> None:
        given = self._given.given
        given["past_key_values"].activate_past_recording()
        given["output_last_hidden_state"] = True
        outputs = self.model._prefill(input_ids, self.config, given)
        prompt = given.pop("inputs_embeds", input_ids) if not self._given.has_source else input_ids
        mask = self._given.mask
        mask = torch.ones(prompt.shape[:2], dtype=torch.bool, device=prompt.device) if mask is None else mask.bool()
        cache, self._mtp = outputs.past_key_values, None
        if self.model.config.head == "mtp":
            drafting = self.model, self.settings.num_tokens
            self._mtp = MtpCache(cache, mask, *drafting, outputs.last_hidden_state, input_ids)
        self._cache = self._mtp or RaggedCache(cache, mask)
        self._logits, self._hidden = outputs.logits[:, -1:], outputs.last_hidden_state[:, -1:]
        self._draft, self._whole = empty_draft(len(input_ids), input_ids.device), False
        self._position = self._given.last_positions(mask)

    def _take_verified(self) -> Tensor:
        """Append what the last pass verified to the rows, and return which of them are finished."""
        draft, process = self._draft, partial(self._rows.process, self._active)
        sample, ends = bool(self.config.do_sample), self._rows.end_tokens
        found = verify(draft, self._logits, process, sample=sample, end_tokens=ends)
        taken, finished = self._rows.append(self._active, found)
        self._cache.keep(found.positions, taken)
        last = found.positions.gather(1, taken[:, None] - 1)
        self._hidden = self._hidden.take_along_dim(last[..., None], dim=1)[:, 0]
        self._position = self._position + taken
        if draft.depths:
            self.counts.num_accepted_tokens += int((taken - 1).sum())
        if self.auto is not None and self.counts.num_forward_passes:
            self._tell_auto(self.auto, taken)
        if self.auto is not None:
            for row, tokens, count in zip(
                *(part.tolist() for part in (self._active, found.tokens, taken)), strict=True
            ):
                self._indices[row].extend(tokens[:count])
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
            self._active, self._hidden = self._active[going], self._hidden[going]
            self._position = self._position[going]
            if len(self._active):
                self._cache.select(going)
                self._given.select(going)
        self._rows.stream(self._active)

    def _make_draft(self) -> Draft:
        active, rows, branches = self._active, self._rows, self.settings.num_branches
        asked, matches = self.settings.num_tokens, []
        if self.auto is not None:
            matches = [self._indices[row].following(self.auto.num_tokens["lookup"]) for row in active.tolist()]
            self._kind = self.auto.choose(found=any(matches))
            asked = self.auto.num_tokens.get(self._kind, 0)
        count = asked
        if count:
            count = min(count, self.config.max_length - int(rows.lengths[active].min()) - 1)  # pyright: ignore
        if self._longest is not None and count:
            # some backbones have no more cache slots than positions, and a tree takes a slot for each branch
            room = self._longest - self._cache.length - 1 - self._lookup
            count = min(count, room)
            branches = min(branches, room // max(count, 1))
        if self._kind == "lookup" and count > 0:
            draft = draft_of([tokens[:count] for tokens in matches], active.device)
        elif branches > 1:
            draft = draft_tree(self.model, self._hidden, rows.last_tokens(active), count, branches)
        else:
            texts = rows.texts(active) if self._drafter.reads_text else []
            process = partial(rows.process, active)
            read = None if self._mtp is None else self._mtp.logits
            draft = self._drafter.draft(self._hidden, rows.last_tokens(active), count, process, texts, read)
        self._whole = max(draft.depths, default=0) == asked and len(active) == len(rows.lengths)
        return draft

    def _read_draft(self) -> None:
        """Read the last known token of each row and its draft."""
        draft, rows = self._draft, self._rows
        chunk, at = rows.last_tokens(self._active)[:, None], self._position[:, None]
        self.counts.num_verifications += len(self._active)
        if draft.depths:
            self.counts.num_drafted_tokens += int(draft.exists.sum())
            chunk = torch.cat([chunk, draft.tokens], dim=1)
            at = at + torch.tensor([0, *draft.depths], device=chunk.device)
        mask = self._cache.mask_for(draft, self.model.dtype, tree=draft.is_tree)
        inputs = self._given.of_pass(mask, at, past_key_values=self._cache.cache, logits_to_keep=chunk.shape[1])
        outputs = self.model(**self.model.prepare_inputs_for_generation(chunk, **inputs), return_dict=True)
        self._logits, self._hidden = outputs.logits, outputs.last_hidden_state
        if self._mtp is not None:
            self._mtp.extend(self._hidden, chunk)
