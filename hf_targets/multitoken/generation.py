"""`generate` of a model with future-token heads: the ensemble, and drafts that the model verifies."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# (a mixin: the model defines backbone, heads and config; Transformers types `self` as a Protocol with more members)

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from torch import Tensor
from transformers import DynamicCache, GenerationConfig, GenerationMixin
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteriaList,
)

from hf_targets.backbones.generation import (
    generation_setting,
    inputs_of_step,
    is_assistant,
    takes_shifted_rows,
    takes_tree_mask,
)
from hf_targets.backbones.inputs import check_prompt_mask
from hf_targets.backbones.positions import check_room, check_source, max_positions, outgrown_positions_named
from hf_targets.backbones.weight_access import is_sharded
from hf_targets.maths.ensemble import check_ensemble_weight
from hf_targets.multitoken.drafting.cache import check_layers
from hf_targets.multitoken.drafting.candidates import HeadCandidates
from hf_targets.multitoken.drafting.chains import ChainDrafter
from hf_targets.multitoken.drafting.drafts import DraftSettings
from hf_targets.multitoken.drafting.loop import check_request, decode_rows
from hf_targets.multitoken.drafting.output import DraftCounts, drafted_output
from hf_targets.multitoken.drafting.pace import FixedPace, MeasuredPace, pace_of
from hf_targets.multitoken.drafting.pass_inputs import sources_of
from hf_targets.multitoken.drafting.stopwatch import Stopwatch
from hf_targets.multitoken.future_logits import PredictsFuture
from hf_targets.multitoken.hidden_state_cache import cache_of_text

logger = logging.getLogger(__name__)

MOST_BRANCHES = 3
"""Branches of the trees that `draft_tokens="auto"` tries."""
_SETTINGS = ("ensemble_weight", "draft_tokens", "draft_branches")
_OF_SOURCE = ("inputs", "input_ids", "inputs_embeds", "attention_mask")


class HeadsGenerationMixin(PredictsFuture, GenerationMixin):
    """`GenerationMixin` for a model with `backbone`, `heads` and `config`."""

    _reads_shifted_rows: bool | None = None
    """Whether the decoder reads a text that begins later in a row as the same; None: not tried yet."""

    def generate(
        self,
        *args: Any,
        ensemble_weight: float | None = None,
        draft_tokens: int | Literal["auto"] | None = None,
        draft_branches: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Generate as `GenerationMixin` does, optionally from the ensemble of equation (13), with drafts, or both.

        With `draft_tokens` the heads guess that many tokens after the next one, and one forward pass verifies them all.
        Greedy output equals that of plain greedy decoding, sampled output has the same distribution, and fewer passes
        are needed. With `return_dict_in_generate=True` the output is a `DraftedGenerationOutput`, which counts passes.

        A chain for one row uses Transformers' assisted decoding. Several rows, branches, a filled cache or custom
        stopping criteria use a loop of this library. It pads a row as soon as a custom criterion ends it; plain
        decoding without an end token continues until all rows have ended.

        Each argument that is None is taken from the generation configuration, if it has a field of that name.

        Args:
            ensemble_weight: Lambda, in [0, 1]; in the end that of the model's configuration. Drafts are then verified
                against the ensemble.
            draft_tokens: k in [1, N - 1]: heads 1 to k guess one token each. 0 drafts nothing. With
                `prompt_lookup_num_tokens`, matches in the text replace guesses that the heads are unsure of. "auto"
                drafts as far as pays: the measured seconds of passes and the tokens that they brought decide between
                no draft, a chain that ends where the heads are unsure, and a tree. Where nothing pays, or a setting
                does not go with drafts, it decodes plainly. The text is never another than without drafts; sampled
                texts of several rows are therefore decoded plainly, and so is any text if the weights are sharded. Beam
                search and models without a cache give Transformers' own output.
            draft_branches: Guesses kept at each of the k steps, all verified in one pass; None: 1, and up to 3 with
                "auto". With a backbone that takes no tree mask, or an ensemble, drafts are chains; a log line then says
                so.
        Raises:
            ValueError: If a value is out of range, or drafting is combined with beams, another assistant, prompt lookup
                in trees, a cache that is not dynamic, or a backbone without such a cache.
        Related: drafts are verified by logits of a whole chunk. If two tokens are equally probable up to rounding, the
            choice may differ from that of decoding one token at a time.
        """
        prompt, config = (*args, None, None)[:2]
        check_prompt_mask(prompt, kwargs)
        config = kwargs.get("generation_config", config)
        told = {name: generation_setting(name, config, self.generation_config) for name in _SETTINGS}
        weight = self._check_weight(told["ensemble_weight"] if ensemble_weight is None else ensemble_weight)
        cached = self._supports_default_dynamic_cache() and not self.backbone._is_stateful
        if draft_tokens is None and not is_assistant(config):  # another model verifies an assistant's text
            draft_tokens = told["draft_tokens"]
        if draft_tokens not in (None, 0):
            draft_branches = told["draft_branches"] if draft_branches is None else draft_branches
            kwargs["drafting"] = self._drafting(draft_tokens, draft_branches, cached=cached, given=kwargs)
        elif draft_branches is not None and draft_branches != 1:
            raise ValueError(
                f"draft_branches={draft_branches} needs draft_tokens; give it, or leave out draft_branches"
            )
        if self.backbone._is_stateful:
            kwargs["use_cache"] = False  # without a key-value cache, every step reads the whole text again
        text = kwargs
        if self.config.is_encoder_decoder:
            sources = (prompt, *(kwargs.get(name) for name in ("inputs", "input_ids", "inputs_embeds")))
            check_source(self.backbone, next((source for source in sources if source is not None), None))
            prompt = kwargs.get("decoder_input_ids")
            text = {name: value for name, value in kwargs.items() if name not in _OF_SOURCE}
        check_room(self.backbone, prompt, text, config, self.generation_config)
        with outgrown_positions_named(self.backbone):
            return super().generate(*args, ensemble_weight=weight, **kwargs)

    def _prepare_generation_config(
        self, generation_config: GenerationConfig | None, *, ensemble_weight: float | None = None, **kwargs: Any
    ) -> tuple[GenerationConfig, dict[str, Any]]:
        """Keep the weight from a configuration that has a field of that name, which would take it for its own."""
        config, others = super()._prepare_generation_config(generation_config, **kwargs)
        return config, {**others, "ensemble_weight": ensemble_weight}

    def _check_weight(self, ensemble_weight: float | None, *others: float) -> float | None:
        """Return the given or else the configured ensemble weight; raise an error if it or one of `others` is wrong."""
        given = self.config.ensemble_weight if ensemble_weight is None else ensemble_weight
        for weight in (given or 0.0, *others):
            if check_ensemble_weight(weight) and self.heads.outputs is not None:
                raise ValueError(
                    "heads with separate_output_heads=True have no ensemble, which mixes predictions before a shared "
                    f"output matrix; the ensemble weight must be 0 or None, got {weight}"
                )
        return given

    def _drafting(
        self, tokens: int | str, branches: int | None, *, cached: bool, given: dict[str, Any]
    ) -> DraftSettings | None:
        """Return the settings that were asked for; None if "auto" cannot draft here, which a log line says."""
        if tokens != "auto":
            return self._check_drafting(tokens, 1 if branches is None else branches, cached=cached, given=given)
        branches = MOST_BRANCHES if branches is None else branches
        try:
            settings = self._check_drafting(self.config.ngram_size - 1, branches, cached=cached, given=given)
        except ValueError as error:
            if type(branches) is not int or branches < 1:
                raise
            logger.info("Decoding without drafts: %s.", error)
            return None
        return replace(settings, measured=True)

    def _check_drafting(
        self, tokens: int | str, branches: int, *, cached: bool, given: dict[str, Any]
    ) -> DraftSettings:
        most = self.config.ngram_size - 1
        if type(tokens) is not int or not 1 <= tokens <= most:
            raise ValueError(
                f"draft_tokens must be in [1, {most}], as the model has N - 1 = {most} heads, got {tokens!r}; give 0 "
                'to draft nothing, or "auto"'
            )
        if type(branches) is not int or branches < 1:
            raise ValueError(f"draft_branches must be an integer, 1 or more, got {branches}; 1 drafts a chain")
        if not cached:
            raise ValueError(
                f"drafting removes rejected tokens from a dynamic key-value cache, and "
                f"{type(self.backbone).__name__} has no such cache; give draft_tokens=0"
            )
        for name in ("assistant_model", "custom_generate"):
            if given.get(name) is not None:
                raise ValueError(
                    f"draft_tokens and {name} both decide how to decode; leave out {name}, or give draft_tokens=0"
                )
        if given.get("synced_gpus"):
            raise ValueError("draft_tokens does not support synced_gpus=True; leave it out, or give draft_tokens=0")
        return DraftSettings(tokens, branches)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        *,
        ensemble_weight: float | None = None,
        drafting: DraftSettings | None = None,
        candidate_generator: CandidateGenerator | None = None,
        tokenizer: Any = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Prepare the inputs of a step of `generate` as the backbone does."""
        inputs = inputs_of_step(self.backbone, input_ids, inputs_embeds, **kwargs)
        return {**inputs, "ensemble_weight": ensemble_weight}

    def _prepare_text_encoder_decoder_kwargs_for_generation(
        self, inputs_tensor: Tensor, model_kwargs: dict[str, Any], **settings: Any
    ) -> dict[str, Any]:
        """Run the encoder without the arguments of heads and drafts, and keep what it reads for prompt lookup."""
        own = {key: model_kwargs.pop(key) for key in ("ensemble_weight", "drafting") if key in model_kwargs}
        prepared = super()._prepare_text_encoder_decoder_kwargs_for_generation(inputs_tensor, model_kwargs, **settings)
        config = settings["generation_config"]
        if own.get("drafting") is not None and config.prompt_lookup_num_tokens is not None and config.num_beams == 1:
            own["source"] = inputs_tensor
        return {**prepared, **own}

    def _sample(self, input_ids: Tensor, *args: Any, source: Tensor | None = None, **kwargs: Any) -> Any:
        return self._with_drafts(super()._sample, input_ids, *args, source=source, **kwargs)

    def _assisted_decoding(self, *args: Any, source: Any = None, inputs_tensor: Any = None, **kwargs: Any) -> Any:
        # `generate` gives what an assistant's encoder is to read to a method that names it
        decode = partial(super()._assisted_decoding, inputs_tensor=inputs_tensor)
        return self._with_drafts(decode, *args, source=source, **kwargs)

    def _with_drafts(
        self,
        decode: Callable[..., Any],
        input_ids: Tensor,
        *args: Any,
        source: Tensor | None,
        drafting: DraftSettings | None = None,
        **kwargs: Any,
    ) -> Any:
        plain = partial(decode, input_ids, *args, **kwargs)
        if drafting is None:
            return plain()
        return self._decode_with_drafts(plain, input_ids, drafting, *args, source=source, **kwargs)

    def _beam_search(self, *args: Any, drafting: DraftSettings | None = None, **kwargs: Any) -> Any:
        if drafting is not None and not drafting.measured:
            raise ValueError(
                "draft_tokens cannot be combined with beam search; leave out num_beams, or give draft_tokens=0"
            )
        if drafting is not None:
            logger.info("Decoding without drafts: they cannot be combined with beam search.")
        return super()._beam_search(*args, **kwargs)

    def _get_candidate_generator(self, *args: Any, model_kwargs: dict[str, Any], **kwargs: Any) -> CandidateGenerator:
        of_heads = model_kwargs.get("candidate_generator")
        if of_heads is not None:
            return of_heads
        others = {name: value for name, value in model_kwargs.items() if name != "ensemble_weight"}
        return super()._get_candidate_generator(*args, model_kwargs=others, **kwargs)

    def _decode_with_drafts(
        self,
        plain: Callable[[], Any],
        input_ids: Tensor,
        drafting: DraftSettings,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        source: Tensor | None = None,
        inputs_tensor: Tensor | None = None,
        streamer: Any = None,
        synced_gpus: bool = False,
        **model_kwargs: Any,
    ) -> Any:
        config, longest, is_pair = generation_config, max_positions(self.config), self.config.is_encoder_decoder
        given = {**model_kwargs, "synced_gpus": synced_gpus}
        looks_up = config.prompt_lookup_num_tokens is not None
        sources = sources_of(source, given.get("attention_mask"))
        by_rows = partial(
            decode_rows,
            self,
            input_ids,
            max_positions=longest,
            processors=logits_processor,
            criteria=stopping_criteria,
            config=config,
            streamer=streamer,
            sources=sources,
            **model_kwargs,
        )
        if drafting.measured:
            pace = self._measured_pace(input_ids, drafting, stopping_criteria, config, given)
            # with prompt lookup Transformers' own loop is another way again, and takes one row only
            if pace is not None and (looks_up or not pace.begins_plain(len(input_ids))):
                return by_rows(pace=pace)
            watch = Stopwatch()
            stopping_criteria.append(watch)
            output = plain()
            if pace is not None and watch.passes > 1:
                pace.record_plain(len(input_ids), watch.passes, watch.seconds_of_a_pass)
            if not config.return_dict_in_generate:
                return output
            counts = DraftCounts(forward_passes=watch.passes, verifications=len(input_ids) * (watch.passes - 1))
            return drafted_output(counts, is_encoder_decoder=is_pair, **output)
        _check_config(config, model_kwargs.get("past_key_values"))
        drafting = self._without_branches(drafting, config, model_kwargs.get("ensemble_weight"))
        simple = EosTokenCriteria | MaxLengthCriteria | MaxTimeCriteria  # any other must be tried after each token
        cache = model_kwargs["past_key_values"]
        # with a filled cache, Transformers' loop would read the whole prompt again
        one_chain = len(input_ids) == 1 and drafting.num_branches == 1 and not cache.get_seq_length()
        if not one_chain or not all(isinstance(criterion, simple) for criterion in stopping_criteria):
            self._check_rows(input_ids, config, given)
            return by_rows(pace=FixedPace(drafting))
        first = None if sources is None else sources[0]
        drafter = ChainDrafter(self, config, processed=bool(logits_processor), after_source=first is not None)
        lengths = {"max_length": config.max_length, "max_positions": longest}
        candidates = HeadCandidates(drafter, logits_processor, drafting.num_tokens, source=first, **lengths)
        output = super()._assisted_decoding(
            input_ids,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            generation_config=config,
            inputs_tensor=inputs_tensor,
            streamer=streamer,
            synced_gpus=synced_gpus,
            candidate_generator=candidates,
            **model_kwargs,
        )
        if not config.return_dict_in_generate:
            return output
        return drafted_output(candidates.counts, is_encoder_decoder=is_pair, **output)

    def _check_rows(self, input_ids: Tensor, config: GenerationConfig, given: dict[str, Any]) -> None:
        """Raise an error if drafts for several rows, trees or custom criteria cannot be made of this request."""
        is_pair = self.config.is_encoder_decoder
        check_request(input_ids, config, given, is_encoder_decoder=is_pair)
        if not is_pair or len(input_ids) == 1:
            return
        if self._reads_shifted_rows is None:
            self._reads_shifted_rows = takes_shifted_rows(self.backbone)
        if not self._reads_shifted_rows:
            raise ValueError(
                f"drafting for several rows needs a decoder that takes positions or reads distances, and that of "
                f"{type(self.backbone).__name__} does neither; generate row by row, or give draft_tokens=0"
            )

    def _measured_pace(
        self,
        input_ids: Tensor,
        drafting: DraftSettings,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        model_kwargs: dict[str, Any],
    ) -> MeasuredPace | None:
        """Return what decides how far to draft, or None if drafts could not be made or would change the text."""
        simple = all(isinstance(criterion, EosTokenCriteria | MaxLengthCriteria) for criterion in criteria)
        try:
            _check_config(config, model_kwargs.get("past_key_values"))
            check_layers(model_kwargs["past_key_values"])
            self._check_rows(input_ids, config, model_kwargs)
            if len(input_ids) > 1 and (config.do_sample or not simple):
                raise ValueError("several rows that are sampled or have stopping criteria of their own would differ")
            if config.do_sample and not simple:
                raise ValueError("a sampled text with stopping criteria of its own would draw after its end")
            if is_sharded(self):
                raise ValueError("the processes that share the weights must take equal passes, and their clocks differ")
        except ValueError as error:
            logger.info("Decoding without drafts: %s.", error)
            return None
        weight, lookup = model_kwargs.get("ensemble_weight"), config.prompt_lookup_num_tokens
        if lookup is not None:
            drafting = replace(drafting, num_branches=1)
        conditions = (drafting, bool(weight), bool(config.do_sample), lookup, self.dtype, self.device)
        attention = self.backbone.config._attn_implementation
        return pace_of(self, (*conditions, attention), lambda: self._without_branches(drafting, config, weight))

    def _without_branches(
        self, drafting: DraftSettings, config: GenerationConfig, ensemble_weight: float | None
    ) -> DraftSettings:
        """Return the settings, changed to those of a chain if a tree cannot be verified."""
        if drafting.num_branches == 1:
            return drafting
        if config.prompt_lookup_num_tokens is not None:
            raise ValueError(
                "prompt lookup extends a chain; give draft_branches=1, or leave out prompt_lookup_num_tokens"
            )
        if ensemble_weight:
            why = "an ensemble supports only one path"
        elif not takes_tree_mask(self.backbone):
            why = f"{type(self.backbone).__name__} takes no tree mask in this configuration"
        else:
            return drafting
        logger.info("Drafting a chain instead of %d branches: %s.", drafting.num_branches, why)
        return replace(drafting, num_branches=1)


def _check_config(config: GenerationConfig, cache: Any) -> None:
    """Raise an error if the cache or an option of `generate` cannot be combined with drafts."""
    own: Any = None if cache is None else cache_of_text(cache)
    dynamic = isinstance(own, DynamicCache)
    if not config.use_cache or not dynamic or own.offloading:
        kind = "none" if not config.use_cache or own is None else "an offloaded one" if dynamic else type(own).__name__
        raise ValueError(
            "drafting removes rejected tokens from the key-value cache, so it takes a DynamicCache in memory, got "
            f"{kind}; leave out cache_implementation, and pass use_cache=True, or give draft_tokens=0"
        )
    for name in ("guidance_scale", "assistant_ensemble_weight", "assistant_early_exit", "use_mtp"):
        neutral = (None, 1.0) if name == "guidance_scale" else (None, False)
        if getattr(config, name, None) not in neutral:
            raise ValueError(f"{name} cannot be combined with draft_tokens; leave it out, or give draft_tokens=0")
