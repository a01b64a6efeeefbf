"""`generate` of a model that predicts blocks: word by word, or several words in each pass."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# (a mixin: the model defines backbone and config; Transformers types `self` as a Protocol with more members)

from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import StoppingCriteriaList
from transformers.generation.utils import GenerateDecoderOnlyOutput

from hf_targets.backbones.generation import generation_setting, inputs_of_step
from hf_targets.backbones.inputs import check_prompt_mask
from hf_targets.backbones.positions import check_room, outgrown_positions_named


class BlockGenerationMixin(GenerationMixin):
    """`GenerationMixin` for a model with `backbone` and `config`, whose output may have `block_logits`."""

    def generate(self, *args: Any, tokens_per_step: int | None = None, **kwargs: Any) -> Any:
        """Generate as `GenerationMixin` does, or several tokens in each pass.

        Args:
            tokens_per_step: In [1, N]. None: that of the generation configuration, or 1. With 1 each token is the next
                word of a pass, as with any causal model. With more, a pass writes its first so many predicted words:
                fewer passes, each later word chosen without knowledge of those before it in its block. Logits
                processors and stopping criteria see each token; greedy decoding and sampling only.
        Raises:
            ValueError: If it is out of range, or combined with beams, drafts, or attentions and hidden states as
                outputs.
        Source: Heo and Choi, "Sentence Curve Language Models", section 5.4.
        """
        check_prompt_mask(args[0] if args else None, kwargs)
        most, (prompt, config) = self.config.ngram_size, (*args, None, None)[:2]
        config = kwargs.get("generation_config", config)
        if tokens_per_step is None:
            found = generation_setting("tokens_per_step", config, self.generation_config)
            tokens_per_step = 1 if found is None else int(found)
        if type(tokens_per_step) is not int or not 1 <= tokens_per_step <= most:
            raise ValueError(f"tokens_per_step must be in [1, {most}], as ngram_size says, got {tokens_per_step!r}")
        if tokens_per_step > 1:
            _check_goes_with(tokens_per_step, custom_generate=kwargs.get("custom_generate"))
            kwargs["words_per_pass"] = tokens_per_step  # not a name that a generation configuration would take
        if self.backbone._is_stateful:
            kwargs["use_cache"] = False  # without a key-value cache, every step reads the whole text again
        check_room(self.backbone, prompt, kwargs, config, self.generation_config)
        with outgrown_positions_named(self.backbone):
            return super().generate(*args, **kwargs)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        *,
        words_per_pass: int = 1,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Prepare the inputs of a step of `generate` as the backbone does."""
        inputs = inputs_of_step(self.backbone, input_ids, inputs_embeds, **kwargs)
        return {**inputs, "output_block_logits": True} if words_per_pass > 1 else inputs

    def _beam_search(self, *args: Any, words_per_pass: int = 1, **kwargs: Any) -> Any:
        _check_goes_with(words_per_pass, num_beams=True)
        return super()._beam_search(*args, **kwargs)

    def _assisted_decoding(self, *args: Any, words_per_pass: int = 1, **kwargs: Any) -> Any:
        _check_goes_with(words_per_pass, drafts=True)
        return super()._assisted_decoding(*args, **kwargs)

    def _sample(
        self,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        *args: Any,
        words_per_pass: int = 1,
        **kwargs: Any,
    ) -> Any:
        settings = input_ids, logits_processor, stopping_criteria, generation_config
        if words_per_pass == 1:
            return super()._sample(*settings, *args, **kwargs)
        return self._write_blocks(*settings, words_per_pass, **kwargs)

    def _write_blocks(
        self,
        input_ids: Tensor,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        count: int,
        *,
        streamer: Any = None,
        synced_gpus: bool = False,
        **model_kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """Write `count` tokens in each pass, until all rows have ended."""
        returned = bool(config.return_dict_in_generate)
        asked = {name: returned and getattr(config, name) for name in ("output_attentions", "output_hidden_states")}
        _check_goes_with(count, synced_gpus=synced_gpus, **asked)
        pads = config._pad_token_tensor
        scores: list[Tensor] | None = [] if returned and config.output_scores else None
        logits: list[Tensor] | None = [] if returned and config.output_logits else None
        has_end = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        is_open = torch.ones(len(input_ids), dtype=torch.bool, device=input_ids.device)
        model_kwargs["words_per_pass"] = count
        outputs = self._prefill(input_ids, config, model_kwargs, is_first_iteration=True)
        while True:
            block = outputs.block_logits[:, -1].to(dtype=torch.float32, device=input_ids.device)
            segments = model_kwargs.pop("token_type_ids", None)  # Transformers would repeat the last `count` of them
            model_kwargs = self._update_model_kwargs_for_generation(outputs, model_kwargs, num_new_tokens=count)
            if segments is not None:
                repeated = segments[:, -1:].expand(-1, count)
                model_kwargs["token_type_ids"] = torch.cat([segments, repeated], dim=1)
            for n in range(count):
                seen = processors(input_ids, block[:, n].clone())
                if scores is not None:
                    scores.append(seen)
                if logits is not None:
                    logits.append(block[:, n].clone())
                tokens = torch.multinomial(seen.softmax(-1), 1)[:, 0] if config.do_sample else seen.argmax(dim=-1)
                if has_end:
                    tokens = tokens.where(is_open, pads)
                input_ids = torch.cat([input_ids, tokens[:, None]], dim=1)
                if streamer is not None:
                    streamer.put(tokens.cpu())
                is_open = is_open & ~criteria(input_ids, None if scores is None else tuple(scores))
                if not is_open.any():
                    break
            if not is_open.any():
                break
            read = count if model_kwargs["use_cache"] else None
            outputs = self(
                **self.prepare_inputs_for_generation(input_ids, next_sequence_length=read, **model_kwargs),
                return_dict=True,
            )
        if streamer is not None:
            streamer.end()
        if not returned:
            return input_ids
        return GenerateDecoderOnlyOutput(
            sequences=input_ids,
            scores=None if scores is None else tuple(scores),
            logits=None if logits is None else tuple(logits),
            past_key_values=model_kwargs.get("past_key_values"),
        )


def _check_goes_with(words_per_pass: int, **asked: Any) -> None:
    """Raise a ValueError if several words are to be written in a pass beside something that is asked for."""
    if words_per_pass > 1 and (names := [name for name, value in asked.items() if value]):
        raise ValueError(f"tokens_per_step={words_per_pass} does not go with {', '.join(names)}; leave out one of them")
