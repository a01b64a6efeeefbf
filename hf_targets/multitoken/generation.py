"""`generate` of a model with future-token heads: the ensemble, and drafts that the model verifies."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# (a mixin: the model defines backbone, heads and config; Transformers types `self` as a Protocol with more members)

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.logits_process import (
    LogitsProcessorList,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation.stopping_criteria import StoppingCriteriaList

from hf_targets.backbones.generation import (
    generation_setting,
    inputs_of_step,
    is_assistant,
    takes_tree_mask,
)
from hf_targets.backbones.inputs import check_prompt_mask
from hf_targets.backbones.positions import check_room, check_source, outgrown_positions_named
from hf_targets.maths.ensemble import check_ensemble_weight
from hf_targets.multitoken.draft import Drafts
from hf_targets.multitoken.drafting.auto import AutoDrafts
from hf_targets.multitoken.drafting.drafts import DraftSettings
from hf_targets.multitoken.drafting.lookup import MOST
from hf_targets.multitoken.drafting.loop import DraftingLoop
from hf_targets.multitoken.drafting.outputs import plain_output
from hf_targets.multitoken.drafting.request import LEARNT_PROMPTS, can_draft

logger = logging.getLogger(__name__)

LOOKUP_TOKENS = 4  # that "auto" takes of a match in the text by default
AUTO_BRANCHES = 9  # of the trees that it tries
AUTO_NODES = 15  # of these on a CPU, where further ones cost more than they bring
_SETTINGS = ("ensemble_weight", "draft_tokens", "draft_branches", "draft_nodes")
_DECODERS = ("assistant_model", "custom_generate")
_OF_SOURCE = ("inputs", "input_ids", "inputs_embeds", "attention_mask")


class HeadsGenerationMixin(GenerationMixin):
    """`GenerationMixin` for a model with heads that predict the tokens after the next one."""

    _auto_drafts: dict[Any, AutoDrafts] | None = None
    """What "auto" has learnt of drafts, by conditions; None: nothing."""

    def generate(
        self,
        *args: Any,
        ensemble_weight: float | None = None,
        draft_tokens: int | Literal["auto"] | None = None,
        draft_branches: int | None = None,
        draft_nodes: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Generate as `GenerationMixin` does, optionally from the ensemble of equation (13), with drafts, or both.

        With `draft_tokens` the heads guess that many tokens after the next one, and one forward pass verifies them all.
        Greedy output equals that of plain greedy decoding, sampled output has the same distribution, and fewer passes
        are needed. With `return_dict_in_generate=True` the output is a `DraftedGenerationOutput`, which counts passes.
        A row is padded as soon as a stopping criterion of your own ends it; plain decoding without an end token
        continues until all rows have ended.

        Each argument that is None is taken from the generation configuration, if it has a field of that name.

        Args:
            ensemble_weight: Lambda, in [0, 1]; in the end that of the model's configuration. Drafts are then verified
                against the ensemble.
            draft_tokens: k in [1, N - 1]: heads 1 to k guess one token each. 0 drafts nothing. With
                `prompt_lookup_num_tokens`, matches in the text replace guesses that the heads are unsure of; in a tree
                they are a path beside the guesses. "auto" chooses in each pass among tokens that the heads guess,
                tokens that followed the last ones earlier in the text (up to `prompt_lookup_num_tokens`, or 4), and
                none, by what has paid (`AutoDrafts`). The text is the one without drafts; sampled texts of several rows
                are therefore decoded plainly, and so is any text if the weights are sharded. Beam search and models
                without a cache give Transformers' own output.
            draft_branches: Guesses kept at each of the k steps, all verified in one pass; None: 1, or what "auto" finds
                to pay for a single text, 1 or 9. Several pay as long as further tokens of a pass cost little. With a
                backbone that takes no tree mask, or an ensemble, drafts are chains; a log line then says so.
            draft_nodes: The most tokens of a tree that are verified, the most probable ones of all steps; None: all, or
                15 if "auto" drafts on a CPU. Source: EAGLE-2 (Li et al. 2024), section 4.2.
        Raises:
            ValueError: If a value is out of range, or drafting is combined with beams, another assistant, a cache
                from which tokens cannot be dropped, attention weights or hidden states as output, or a backbone without
                a cache.
        Related: drafts are verified by logits of a whole chunk. If two tokens are equally probable up to rounding, the
            choice may differ from that of decoding one token at a time.
        """
        prompt, config = (*args, None, None)[:2]
        check_prompt_mask(prompt, kwargs)
        config = kwargs.get("generation_config", config)
        told = {name: generation_setting(name, config, self.generation_config) for name in _SETTINGS}
        weight = self._check_weight(told["ensemble_weight"] if ensemble_weight is None else ensemble_weight)
        if draft_tokens is None and not is_assistant(config):  # another model verifies an assistant's text
            draft_tokens = told["draft_tokens"]
        if draft_tokens not in (None, 0):
            draft_branches = told["draft_branches"] if draft_branches is None else draft_branches
            draft_nodes = told["draft_nodes"] if draft_nodes is None else draft_nodes
            kwargs["drafting"] = self._drafting(draft_tokens, draft_branches, draft_nodes, given=kwargs)
        elif draft_branches is not None and draft_branches != 1:
            raise ValueError(f"draft_branches={draft_branches} needs draft_tokens; give it, or leave it out")
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
            return self._write(*args, ensemble_weight=weight, **kwargs)

    def _write(self, *args: Any, **kwargs: Any) -> Any:
        """Generate as `GenerationMixin` does, which asks this model for the steps."""
        return super().generate(*args, **kwargs)

    def _prepare_generation_config(
        self, generation_config: GenerationConfig | None, *, ensemble_weight: float | None = None, **kwargs: Any
    ) -> tuple[GenerationConfig, dict[str, Any]]:
        """Keep the weight from a configuration that has a field of that name, which would take it for its own."""
        config, others = super()._prepare_generation_config(generation_config, **kwargs)
        return config, {**others, "ensemble_weight": ensemble_weight}

    def _get_logits_processor(
        self, *args: Any, model_kwargs: dict[str, Any] | None = None, **kwargs: Any
    ) -> LogitsProcessorList:
        """Return the processors; guidance reads the text without its prompt by the same ensemble."""
        processors = super()._get_logits_processor(*args, model_kwargs=model_kwargs, **kwargs)
        for processor in processors:
            if isinstance(processor, UnbatchedClassifierFreeGuidanceLogitsProcessor) and processor.model is self:
                processor.model = partial(self, ensemble_weight=(model_kwargs or {}).get("ensemble_weight"))
        return processors

    def init_continuous_batching(
        self, generation_config: GenerationConfig | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Return the manager that `generate_batch` uses; it keeps no hidden states, which an ensemble needs."""
        told = generation_setting("ensemble_weight", generation_config, self.generation_config)
        if weight := self.config.ensemble_weight or told:
            raise ValueError(
                f"continuous batching has no ensemble, got ensemble_weight={weight}; use generate, or set the weight "
                "to 0 in model.config and in the generation configuration"
            )
        return super().init_continuous_batching(generation_config, *args, **kwargs)

    def _check_weight(self, ensemble_weight: float | None, *others: float) -> float | None:
        """Return the given or else the configured ensemble weight; raise an error if it or one of `others` is wrong."""
        given = self.config.ensemble_weight if ensemble_weight is None else ensemble_weight
        for weight in (given or 0.0, *others):
            if check_ensemble_weight(weight) and self.heads.outputs is not None:
                raise ValueError(
                    f"heads with separate_output_heads=True have no ensemble, got ensemble weight {weight}"
                )
        return given

    def _drafting(
        self, tokens: int | str, branches: int | None, nodes: int | None, *, given: dict[str, Any]
    ) -> DraftSettings | None:
        """Return the settings that were asked for; None if "auto" cannot draft here, which a log line says."""
        most, auto = self.config.ngram_size - 1, tokens == "auto"
        or_chain = auto and branches is None
        branches = (AUTO_BRANCHES if auto else 1) if branches is None else branches
        if not auto and (type(tokens) is not int or not 1 <= tokens <= most):
            raise ValueError(
                f"draft_tokens must be in [1, {most}], as the model has {most} heads, got {tokens!r}; give 0 to draft "
                'nothing, or "auto"'
            )
        for name, value in (("draft_branches", branches), ("draft_nodes", 1 if nodes is None else nodes)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be an integer, 1 or more, got {value}")
        if nodes is None and auto and self.device.type == "cpu":
            nodes = AUTO_NODES
        problem = None
        if not self._supports_default_dynamic_cache() or self.backbone._is_stateful:
            problem = f"{type(self.backbone).__name__} has no dynamic key-value cache to remove rejected tokens from"
        elif others := [one for one in _DECODERS if not isinstance(given.get(one), Drafts | None)]:
            problem = f"draft_tokens and {others[0]} both decide how to decode"
        elif getattr(self.prepare_inputs_for_generation, "__self__", self) is not self:
            problem = LEARNT_PROMPTS
        if problem is None:
            count = most if auto else int(tokens)
            nodes = count * branches if nodes is None else min(nodes, count * branches)
            return DraftSettings(count, branches, nodes, auto=auto, or_chain=or_chain)
        if not auto:
            raise ValueError(f"{problem}; give draft_tokens=0")
        logger.info("Decoding without drafts: %s.", problem)
        return None

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        *,
        ensemble_weight: float | None = None,
        drafting: DraftSettings | None = None,
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

    def _beam_search(self, *args: Any, drafting: DraftSettings | None = None, **kwargs: Any) -> Any:
        if drafting is not None and not drafting.auto:
            raise ValueError("draft_tokens cannot be combined with beam search; leave out num_beams, or the drafts")
        if drafting is not None:
            logger.info("Decoding without drafts: they cannot be combined with beam search.")
        return super()._beam_search(*args, **kwargs)

    def _get_candidate_generator(self, *args: Any, model_kwargs: dict[str, Any], **kwargs: Any) -> CandidateGenerator:
        others = {name: value for name, value in model_kwargs.items() if name != "ensemble_weight"}
        return super()._get_candidate_generator(*args, model_kwargs=others, **kwargs)

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
        return plain() if drafting is None else self._decode(plain, input_ids, drafting, *args, source=source, **kwargs)

    def _decode(
        self,
        plain: Callable[[], Any],
        input_ids: Tensor,
        drafting: DraftSettings,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        source: Tensor | None = None,
        drafts: Drafts | None = None,
        streamer: Any = None,
        synced_gpus: bool = False,
        **model_kwargs: Any,
    ) -> Any:
        """Decode with drafts, or by `plain` where "auto" cannot draft."""
        config, auto, told = generation_config, None, {**model_kwargs, "synced_gpus": synced_gpus}
        if not can_draft(self, input_ids, config, stopping_criteria, told, auto=drafting.auto):
            return plain_output(plain(), input_ids, config.eos_token_id)
        weight, asked = model_kwargs.get("ensemble_weight"), config.prompt_lookup_num_tokens
        if drafts is None and (drafting.auto or asked is not None):
            drafts = Drafts(asked or LOOKUP_TOKENS, most=min(config.max_matching_ngram_size or MOST, MOST))
        drafting = self._without_branches(drafting, weight, len(input_ids))
        if drafting.auto and drafts is not None:
            self._auto_drafts = {} if self._auto_drafts is None else self._auto_drafts
            chain = drafting.num_tokens if drafting.num_branches == 1 or drafting.or_chain else 0
            sizes = {"lookup": drafts.num_tokens, "heads": chain}
            sizes["tree"] = drafting.num_nodes if drafting.num_branches > 1 else 0
            conditions = len(input_ids), self.dtype, str(input_ids.device), bool(weight), *sizes.values()
            auto = self._auto_drafts.setdefault((*conditions, *drafts.others), AutoDrafts(sizes, input_ids.device))
        least = 2 if drafting.num_tokens else None  # heads know better than one token does
        lookup = drafts and drafts.lookup_for(self, input_ids, source, model_kwargs, least=least)
        prepared = streamer, logits_processor, stopping_criteria, config
        return DraftingLoop(self, input_ids, model_kwargs, *prepared, lookup, drafting, auto).run(input_ids)

    def _decode_by(
        self, drafts: Drafts, input_ids: Tensor, source: Any, given: dict[str, Any], streamer: Any, *prepared: Any
    ) -> Any:
        """Decode with drafts of the heads, if they were asked for, and of sources beside them."""
        drafting = given.pop("drafting", None) or DraftSettings(0)
        plain = partial(super()._sample, input_ids, *prepared, streamer=streamer, **given)
        told = {"source": source, "drafts": drafts, "streamer": streamer}
        return self._decode(plain, input_ids, drafting, *prepared, **told, **given)

    def _without_branches(self, drafting: DraftSettings, ensemble_weight: float | None, num_rows: int) -> DraftSettings:
        """Return the settings, changed to those of a chain if a tree cannot be verified, or would not pay."""
        if drafting.num_branches == 1:
            return drafting
        if drafting.or_chain and num_rows > 1:
            return replace(drafting, num_branches=1)
        if ensemble_weight or self.config.head == "mtp":
            why = 'an ensemble, and heads with head="mtp", read only one path'
        elif not takes_tree_mask(self.backbone):
            why = f"{type(self.backbone).__name__} takes no tree mask in this configuration"
        else:
            return drafting
        logger.info("Drafting a chain instead of %d branches: %s.", drafting.num_branches, why)
        return replace(drafting, num_branches=1)
