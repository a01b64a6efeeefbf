"""`generate` for a model with a dynamic vocabulary: generation of tokens and phrases with `GenerationMixin`."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# (the model has the backbone and the phrase table; Transformers types `self` as a Protocol with more members)

import copy
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GenerationConfig, GenerationMixin
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import StoppingCriteriaList

from hf_targets.backbones.generation import generation_setting
from hf_targets.backbones.inputs import check_prompt_mask
from hf_targets.backbones.positions import check_room, outgrown_positions_named
from hf_targets.phrases.decoding.expansion import Expansion, PhraseStreamer, phrase_criteria
from hf_targets.phrases.decoding.processing import phrase_processors
from hf_targets.phrases.decoding.schedule import PhraseCount, PhraseFeed, checked_count
from hf_targets.phrases.decoding.table import PhraseTable, vocabularies_of
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from hf_targets.retrieval.vector_search import VectorSearch


class PhraseGenerationState:
    """The phrase table of each step of `generate`: one for all steps, or one that grows by a schedule or a feed.

    Args:
        make_table: Makes a table from vocabularies and the number of available slots of each (None: all).
        phrases, schedule, index, num_neighbours, static_limit, bias, length_correction: The arguments of `generate`. If
            several rows or beams share a vocabulary, the tokens of the longest one count for the schedule.
    Attributes:
        table: The table of the last step.
        prompt_length: Steps of the prompt (tokens and phrases); 0 until `generate` has prepared the prompt.
    """

    def __init__(
        self,
        make_table: Callable[..., PhraseTable],
        phrases: Any,
        *,
        schedule: PhraseCount | None = None,
        index: VectorSearch | None = None,
        num_neighbours: int = 64,
        static_limit: int | None = None,
        bias: float = 0.0,
        length_correction: float = 0.0,
    ) -> None:
        if isinstance(phrases, PhraseFeed) and schedule is None:
            phrases, schedule = phrases.vocabulary, phrases.schedule()
        if schedule is not None and (isinstance(phrases, PhraseTable | PhraseFeed) or index is not None):
            raise ValueError(
                "phrase_schedule and a PhraseFeed add phrases step by step, and a table or an index has all of them at "
                "once; give one of these"
            )
        self.static_limit, self.prompt_length = static_limit, 0
        self._make_table, self._schedule, self._prior = make_table, schedule, (bias, length_correction)
        self._growing: list[PhraseVocabulary] = [] if schedule is None else vocabularies_of(phrases)
        self._num_tokens = [0] * len(self._growing)
        self._least = [0] * len(self._growing)  # phrases of each vocabulary that the prompt needs
        self._counts: list[int] | None = None
        if schedule is None:
            self.table: PhraseTable = make_table(phrases).with_prior(*self._prior)
        else:
            self._grow()
        if index is not None:
            self.table = self.table.searched(index, num_neighbours)

    def begin(self, prompt: Tensor) -> None:
        """Take the prompt (rows, time), whose phrases are available from the first step on."""
        self.prompt_length = prompt.shape[1]
        if self._growing:
            highest = F.pad(prompt, (1, 0)).reshape(len(self._growing), -1).amax(dim=1).tolist()
            pairs = zip(highest, self._growing, strict=True)
            self._least = [min(max(id_ + 1 - one.vocab_size, 0), one.num_ids) for id_, one in pairs]

    def table_at(self, input_ids: Tensor) -> PhraseTable:
        """Return the table for the step after `input_ids` (rows, time), which include the prompt."""
        if self._growing:
            expansion = Expansion(self.table.vocabularies)
            for number, row in enumerate(expansion.rows(input_ids[:, self.prompt_length :])):
                index = expansion.vocabulary(number, len(input_ids))
                self._num_tokens[index] = max(self._num_tokens[index], len(row))
            self._grow()
        return self.table

    def _grow(self) -> None:
        """Make a new table if the schedule makes more phrases available than before."""
        assert self._schedule is not None
        each = zip(self._num_tokens, self._growing, self._least, strict=True)
        counts = [max(checked_count(self._schedule, number, one.num_ids), least) for number, one, least in each]
        if counts != self._counts:
            table = self._make_table(self._growing, counts=counts)
            self.table, self._counts = table.with_prior(*self._prior), counts


class PhraseGenerationMixin(GenerationMixin):
    """`GenerationMixin` for a model with a `backbone` and a `phrase_table`."""

    generation_state = PhraseGenerationState

    @torch.no_grad()
    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *args: Any,
        phrases: PhraseVocabulary | Sequence[PhraseVocabulary] | PhraseTable | PhraseFeed | None = None,
        phrase_schedule: PhraseCount | None = None,
        phrase_index: VectorSearch | None = None,
        num_neighbours: int = 64,
        phrase_bias: float | None = None,
        phrase_length_correction: float | None = None,
        max_new_static_tokens: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Generate as `GenerationMixin` does, over tokens and phrases.

        A phrase takes one step, and is one id, V or more, in the returned sequences. `PhraseVocabulary.decode` and
        `.spans` convert them to text, as the pipeline `text-generation` does; a tokenizer silently leaves phrases
        out. Sampling, beams, batches and scores work over tokens and phrases together. Streamers, stop strings, and
        your own processors and criteria get the text with phrases expanded into tokens. So do repetition penalty,
        n-gram blocking and bad words, which also apply to phrases.

        Args:
            phrases: One vocabulary for all rows, one for each row, a table made by `phrase_table`, or a `PhraseFeed`,
                whose vocabulary may grow while the texts are written.
            phrase_schedule: Gives the number of available phrases: a `PhraseSchedule`, or any function of the number of
                new tokens and the number of phrases. A phrase is embedded when it becomes available. All phrases up
                to the last one in the prompt are available from the beginning.
            phrase_index: What `index_phrases` makes of one vocabulary for all rows, or another `VectorSearch` over its
                phrases. Each step considers only the best `num_neighbours` phrases that it finds, instead of all.
            num_neighbours: The number of phrases that the index returns.
            phrase_bias: Added to the logits of all phrases: more or fewer of them are written. None: that of the
                generation configuration, else 0.
            phrase_length_correction: Added to the logit of a phrase for each of its tokens after the first, as is
                `phrase_bias`.
            max_new_static_tokens: The number of new tokens at which a row ends. A phrase counts as its tokens, and the
                last phrase may exceed the limit. `max_new_tokens` and `max_length` count steps; without them only this
                limit applies.
        Raises:
            ValueError: If a bias is not finite, a vocabulary does not fit this model, phrases are combined with
                assistants, guidance or watermarks, which support only tokens, or the backbone has fewer positions than
                the prompt and the steps after it may take (one each; `max_new_static_tokens` counts as that many).
        Source: Liu et al., "Generation with Dynamic Vocabulary", section 2.3, appendix D.
        """
        check_prompt_mask(inputs, kwargs)
        asked = "max_new_tokens"
        if max_new_static_tokens is not None:
            if max_new_static_tokens < 1:
                raise ValueError(f"max_new_static_tokens must be 1 or more, got {max_new_static_tokens}")
            names = ("max_new_tokens", "max_length")
            steps, length = (kwargs.get(name) or getattr(generation_config, name, None) for name in names)
            if not steps and not length:
                asked = "max_new_static_tokens"
            if phrases is None or asked == "max_new_static_tokens":  # a step adds a token or more
                if length and not steps:
                    prompts = (inputs, kwargs.get("input_ids"), kwargs.get("inputs_embeds"))
                    steps = max(length - next((one.shape[1] for one in prompts if one is not None), 1), 1)
                steps = min(max_new_static_tokens, steps or max_new_static_tokens)
                kwargs, generation_config = _with_steps(steps, kwargs, generation_config)
        check_room(self.backbone, inputs, kwargs, generation_config, self.generation_config, asked=asked)
        if phrases is None:
            if phrase_schedule is not None or phrase_index is not None:
                raise ValueError("phrase_schedule and phrase_index need phrases; give phrases as well")
            with outgrown_positions_named(self.backbone):
                return super().generate(inputs, generation_config, *args, **kwargs)
        if kwargs.get("cache_implementation") == "paged":
            raise ValueError("continuous batching supports only tokens; leave out cache_implementation='paged'")
        if isinstance(phrases, PhraseGenerationState):  # of a repository's `custom_generate`, which calls this again
            return super().generate(inputs, generation_config, *args, phrases=phrases, **kwargs)
        prior = {"phrase_bias": phrase_bias, "phrase_length_correction": phrase_length_correction}
        for name, value in prior.items():
            value = generation_setting(name, generation_config, self.generation_config) if value is None else value
            prior[name] = value = 0.0 if value is None else value
            if not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value}")
        state = self.generation_state(
            self.phrase_table,
            phrases,
            schedule=phrase_schedule,
            index=phrase_index,
            num_neighbours=num_neighbours,
            static_limit=max_new_static_tokens,
            bias=prior["phrase_bias"],
            length_correction=prior["phrase_length_correction"],
        )
        if kwargs.get("streamer") is not None:
            kwargs["streamer"] = PhraseStreamer(kwargs["streamer"], Expansion(state.table.vocabularies))
        with outgrown_positions_named(self.backbone):
            return super().generate(inputs, generation_config, *args, phrases=state, **kwargs)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        *,
        phrases: PhraseGenerationState | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Prepare a step of `generate` as the backbone would."""
        if inputs_embeds is not None:
            kwargs["inputs_embeds"] = inputs_embeds
        inputs = self.backbone.prepare_inputs_for_generation(input_ids, **kwargs)
        if phrases is None:
            return {**inputs, "phrases": None}
        table, ids = phrases.table_at(input_ids), inputs.get("input_ids")
        if ids is not None and input_ids.shape[1] > phrases.prompt_length:
            # A beam of probability 0 may contain a phrase that is not in the vocabulary of its row.
            inputs["input_ids"] = ids.masked_fill(table.missing(ids), 0)
        return {**inputs, "phrases": table}

    def _sample(
        self,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ) -> Any:
        lists = self._with_phrases(input_ids, logits_processor, stopping_criteria, generation_config, kwargs)
        return super()._sample(input_ids, *lists, generation_config, **kwargs)

    def _beam_search(
        self,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ) -> Any:
        lists = self._with_phrases(input_ids, logits_processor, stopping_criteria, generation_config, kwargs)
        output = super()._beam_search(input_ids, *lists, generation_config, **kwargs)
        if kwargs.get("phrases") is not None:  # without an end token, Transformers pads rows that end early with -1
            pad = generation_config._pad_token_tensor
            ids = output if isinstance(output, Tensor) else output.sequences
            ids.masked_fill_(ids < 0, 0 if pad is None else int(pad))
        return output

    def _assisted_decoding(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("phrases") is not None:
            raise ValueError("assistants and prompt lookup draft only tokens; leave them out, or leave out phrases")
        return super()._assisted_decoding(*args, **kwargs)

    def _with_phrases(
        self,
        input_ids: Tensor,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        kwargs: dict[str, Any],
    ) -> tuple[LogitsProcessorList, StoppingCriteriaList]:
        """Give the state its prompt, and return processors and criteria for tokens and phrases."""
        state: PhraseGenerationState | None = kwargs.get("phrases")
        if state is None:
            return processors, criteria
        state.table.check_batch(len(input_ids) // max(config.num_beams, config.num_return_sequences))
        state.begin(input_ids)
        pad = config._pad_token_tensor
        expansion = Expansion(state.table.vocabularies, 0 if pad is None else int(pad))
        all_criteria = phrase_criteria(
            criteria,
            expansion,
            static_limit=state.static_limit,
            prompt_length=state.prompt_length,
            pads=pad is not None,
        )
        return phrase_processors(processors, expansion, state.table.vocab_size), all_criteria

    def compute_transition_scores(
        self, sequences: Tensor, scores: tuple[Tensor, ...], *args: Any, **kwargs: Any
    ) -> Tensor:
        """Compute the scores of the generated steps as `GenerationMixin` does, for V + P columns of scores."""
        width = max(step.shape[-1] for step in scores)  # steps before a phrase was added have fewer
        scores = tuple(F.pad(step, (0, width - step.shape[-1]), value=-torch.inf) for step in scores)
        wide = SimpleNamespace(vocab_size=width)
        model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: wide))
        return GenerationMixin.compute_transition_scores(model, sequences, scores, *args, **kwargs)


def _with_steps(
    steps: int, arguments: dict[str, Any], config: GenerationConfig | None
) -> tuple[dict[str, Any], GenerationConfig | None]:
    """Return both with `max_new_tokens`: in the configuration where one is given, unless the arguments have it."""
    if config is None or arguments.get("max_new_tokens"):
        return {**arguments, "max_new_tokens": steps}, config
    config = copy.deepcopy(config)
    config.max_new_tokens = steps
    return arguments, config
