"""`generate` of a model with future-token heads: the ensemble, and drafts that the model itself verifies."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# (a mixin: backbone, heads and configuration are its model's; `self` in Transformers' own is a Protocol that asks more)

import logging
from typing import Any

import torch
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

from hf_targets.backbones.inputs import check_prompt_mask
from hf_targets.backbones.weight_access import embedding_rows
from hf_targets.maths.ensemble import check_ensemble_weight
from hf_targets.multitoken.drafting.candidates import HeadCandidates
from hf_targets.multitoken.drafting.chains import ChainDrafter
from hf_targets.multitoken.drafting.drafts import DraftSettings
from hf_targets.multitoken.drafting.loop import decode_rows
from hf_targets.multitoken.drafting.output import DraftedGenerationOutput
from hf_targets.multitoken.tree_mask import takes_tree_mask
from hf_targets.positions import max_positions

logger = logging.getLogger(__name__)

_NOT_FOR_REFORMER = ("position_ids", "logits_to_keep", "next_sequence_length")


class HeadsGenerationMixin(GenerationMixin):
    """`GenerationMixin` for a model with `backbone`, `heads` and their configuration; a `FuturePredictor`."""

    def generate(
        self,
        *args: Any,
        ensemble_weight: float | None = None,
        draft_tokens: int | None = None,
        draft_branches: int = 1,
        **kwargs: Any,
    ) -> Any:
        """Generate as `GenerationMixin` does, from the ensemble of equation (13) and with drafts if asked.

        With `draft_tokens` the heads guess that many tokens after the next one, and one forward pass verifies them all:
        greedy output is that of plain greedy decoding, sampled output has the same distribution, and there are fewer
        passes. With `return_dict_in_generate=True` the output is a `DraftedGenerationOutput`, which counts them. One
        row's chain goes through Transformers' assisted decoding; several rows, branches, a filled cache or stopping
        criteria of your own through a loop of ours. It pads a row that such a criterion has ended, where plain decoding
        without an end token goes on until all rows have ended.

        Args:
            ensemble_weight: Lambda, in [0, 1]; None takes the configuration's. Drafts are then verified against the
                ensemble.
            draft_tokens: k, in [1, N - 1]: the tokens that heads 1 to k guess. None drafts nothing. With
                `prompt_lookup_num_tokens`, matches in the text replace guesses that the heads are unsure of.
            draft_branches: Guesses kept for each of these tokens, all verified in one pass; 1 or more. A backbone that
                takes no tree mask, or a model with an ensemble, drafts a chain (and says so in the log).
        Raises:
            ValueError: If a value is out of range, or drafting is combined with beams, another assistant, prompt lookup
                in trees, a cache that is not dynamic, or a backbone without one.
        Related: Transformers compares drafts with what the model computes for the whole chunk; where two tokens are
            equally probable up to rounding, this may choose another than one token at a time does.
        """
        check_prompt_mask(args[0] if args else None, kwargs)
        weight = self._check_weight(ensemble_weight)
        cached = self._supports_default_dynamic_cache() and not self.backbone._is_stateful
        if draft_tokens is not None:
            kwargs["drafting"] = self._check_drafting(draft_tokens, draft_branches, cached=cached, given=kwargs)
        elif draft_branches != 1:
            raise ValueError("draft_branches shapes a draft; give draft_tokens, the tokens to draft, as well")
        if self.backbone._is_stateful:
            kwargs["use_cache"] = False  # its state is not a key-value cache: every step reads the whole text again
        return super().generate(*args, ensemble_weight=weight, **kwargs)

    def _check_weight(self, ensemble_weight: float | None, *others: float) -> float | None:
        """Return the ensemble weight given, or else configured, once it and the others are known to be possible."""
        given = self.config.ensemble_weight if ensemble_weight is None else ensemble_weight
        for weight in (given or 0.0, *others):
            if check_ensemble_weight(weight) and self.heads.outputs is not None:
                raise ValueError(
                    "an ensemble mixes predictions before one output matrix, and these heads have their own; "
                    f"the ensemble weight must be 0 or None, got {weight}"
                )
        return given

    def _check_drafting(self, tokens: int, branches: int, *, cached: bool, given: dict[str, Any]) -> DraftSettings:
        most = self.config.ngram_size - 1
        if type(tokens) is not int or not 1 <= tokens <= most:
            raise ValueError(
                f"draft_tokens must be in [1, {most}], as the model has N - 1 = {most} heads, got {tokens}; leave it "
                "out to draft nothing"
            )
        if type(branches) is not int or branches < 1:
            raise ValueError(f"draft_branches must be an integer, 1 or more, got {branches}; 1 drafts a chain")
        if not cached:
            raise ValueError(
                f"drafts that are not accepted are taken out of the key-value cache again, and "
                f"{type(self.backbone).__name__} has none that allows it; leave out draft_tokens"
            )
        for name in ("assistant_model", "custom_generate"):
            if given.get(name) is not None:
                raise ValueError(f"draft_tokens and {name} both decide how to decode; leave out one of them")
        if given.get("synced_gpus"):
            raise ValueError("drafting does not keep several GPUs in step; leave out draft_tokens or synced_gpus")
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
        """Prepare a step of `generate` as the backbone would."""
        if inputs_embeds is not None:
            kwargs["inputs_embeds"] = inputs_embeds
        if not self._supports_default_dynamic_cache():
            # Reformer counts positions itself and cannot pad given ones; it prints what else it does not know
            kwargs = {k: v for k, v in kwargs.items() if k not in _NOT_FOR_REFORMER}
        inputs = self.backbone.prepare_inputs_for_generation(input_ids, **kwargs)
        return {**inputs, "ensemble_weight": ensemble_weight}

    def _sample(self, input_ids: Tensor, *args: Any, drafting: DraftSettings | None = None, **kwargs: Any) -> Any:
        if drafting is None:
            return super()._sample(input_ids, *args, **kwargs)
        return self._decode_with_drafts(input_ids, drafting, *args, **kwargs)

    def _assisted_decoding(
        self, input_ids: Tensor, *args: Any, drafting: DraftSettings | None = None, **kwargs: Any
    ) -> Any:
        if drafting is None:
            return super()._assisted_decoding(input_ids, *args, **kwargs)
        return self._decode_with_drafts(input_ids, drafting, *args, **kwargs)

    def _beam_search(self, *args: Any, drafting: DraftSettings | None = None, **kwargs: Any) -> Any:
        if drafting is not None:
            raise ValueError("drafting follows one continuation of each row, and beams several; leave out num_beams")
        return super()._beam_search(*args, **kwargs)

    def _get_candidate_generator(self, *args: Any, model_kwargs: dict[str, Any], **kwargs: Any) -> CandidateGenerator:
        own = model_kwargs.get("candidate_generator")
        if own is not None:
            return own
        theirs = {name: value for name, value in model_kwargs.items() if name != "ensemble_weight"}
        return super()._get_candidate_generator(*args, model_kwargs=theirs, **kwargs)

    def _decode_with_drafts(
        self,
        input_ids: Tensor,
        drafting: DraftSettings,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        inputs_tensor: Tensor | None = None,
        streamer: Any = None,
        synced_gpus: bool = False,
        **model_kwargs: Any,
    ) -> Any:
        config = generation_config
        _check_config(config, model_kwargs.get("past_key_values"))
        drafting = self._without_branches(drafting, config, model_kwargs.get("ensemble_weight"))
        simple = EosTokenCriteria | MaxLengthCriteria | MaxTimeCriteria  # the others must see every token on its own
        cache = model_kwargs["past_key_values"]
        longest = max_positions(self.config)
        # Transformers' loop reads the whole prompt again if a cache holds some of it already
        alone = len(input_ids) == 1 and drafting.num_branches == 1 and not cache.get_seq_length()
        if not alone or not all(isinstance(criterion, simple) for criterion in stopping_criteria):
            if model_kwargs.get("inputs_embeds") is not None:
                raise ValueError(
                    "several rows, branches and own stopping criteria are drafted from the text's tokens; give "
                    "input_ids in place of inputs_embeds, or leave out draft_tokens"
                )
            if synced_gpus:
                raise ValueError(
                    "several rows, branches and own stopping criteria are drafted without keeping several GPUs in "
                    "step; leave out draft_tokens"
                )
            return decode_rows(
                self,
                input_ids,
                settings=drafting,
                max_positions=longest,
                processors=logits_processor,
                criteria=stopping_criteria,
                config=config,
                streamer=streamer,
                **model_kwargs,
            )
        drafter = ChainDrafter(self, config)
        lengths = {"max_length": config.max_length, "max_positions": longest}
        candidates = HeadCandidates(drafter, logits_processor, drafting.num_tokens, **lengths)
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
        return DraftedGenerationOutput(**output, **candidates.counts.named())

    def _without_branches(
        self, drafting: DraftSettings, config: GenerationConfig, ensemble_weight: float | None
    ) -> DraftSettings:
        """Return settings of a chain where a tree cannot be verified."""
        if drafting.num_branches == 1:
            return drafting
        if config.prompt_lookup_num_tokens is not None:
            raise ValueError("prompt lookup extends a chain; leave out draft_branches or prompt_lookup_num_tokens")
        if ensemble_weight:
            why = "an ensemble looks back along one path"
        elif not takes_tree_mask(self.backbone):
            why = f"{type(self.backbone).__name__} takes no tree mask as it is configured"
        else:
            return drafting
        logger.info("Drafting a chain instead of %d branches: %s.", drafting.num_branches, why)
        return DraftSettings(drafting.num_tokens)

    @property
    def sequential(self) -> bool:
        """Whether a head's guess depends on the tokens between: with word differences it does."""
        return self.config.target == "difference"

    def future_states(self, hidden: Tensor, count: int) -> Tensor:
        """Map hidden states (rows, d) to what heads 1 to `count` make of them, (rows, count, d)."""
        return self.heads.states(hidden, count)

    def future_logits(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Return head n's logits (rows, vocab), given its states (rows, d) and the n tokens (rows, n) since then."""
        output, n = self.get_output_embeddings(), tokens.shape[1]
        rows = embedding_rows(output, tokens) if self.sequential else None
        return self.heads.output(n, output)(self.heads.complete(n, states, rows))

    def parallel_logits(self, states: Tensor) -> Tensor:
        """Return the logits (rows, count, vocab) of all heads at once, of heads whose guesses need no other."""
        output = self.get_output_embeddings()
        if self.heads.outputs is None:
            return output(states)
        own = [self.heads.output(n + 1, output)(states[:, n]) for n in range(states.shape[1])]
        return torch.stack(own, dim=1)


def _check_config(config: GenerationConfig, cache: Any) -> None:
    """Raise an error for what `generate` was asked beside drafts that they do not go with."""
    dynamic = isinstance(cache, DynamicCache)
    if not config.use_cache or not dynamic or cache.offloading:
        kind = (
            "none" if not config.use_cache or cache is None else "an offloaded one" if dynamic else type(cache).__name__
        )
        raise ValueError(
            "drafts that are not accepted are taken out of the key-value cache again, which takes a DynamicCache in "
            f"memory, got {kind}; leave out cache_implementation, and pass use_cache=True"
        )
    for name in ("guidance_scale", "assistant_ensemble_weight", "assistant_early_exit", "use_mtp"):
        neutral = (None, 1.0) if name == "guidance_scale" else (None, False)
        if getattr(config, name, None) not in neutral:
            raise ValueError(f"{name} cannot be combined with draft_tokens; leave out one of them")
