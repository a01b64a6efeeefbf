"""Models of this package as models of lm-eval, the language model evaluation harness.

Importing the module registers `hf-targets` (any causal or encoder-decoder model, with what ours add) and
`hf-targets-mdlm` (masked diffusion models) for `lm_eval.simple_evaluate`. lm-eval's command line with both is

    python -m hf_targets.harness --model hf-targets --model_args pretrained=FOLDER,ensemble_weight=0.04 --tasks ...
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM

from hf_targets.backbones.new_parts import unwrapped
from hf_targets.backbones.output_reading import output_inputs
from hf_targets.data.batches import padded_rows
from hf_targets.data.progress import progress
from hf_targets.extras import require
from hf_targets.masked_diffusion.configuration import MdlmConfig
from hf_targets.masked_diffusion.perplexity_bound import EvaluationNoise
from hf_targets.maths.losses import IGNORED
from hf_targets.maths.statistics import mean_and_standard_error
from hf_targets.multitoken.model import MultiTokenModel
from hf_targets.neural_cache.cache import NeuralCache
from hf_targets.neural_cache.generation import cache_processor
from hf_targets.phrases.decoding.expansion import Expansion
from hf_targets.phrases.model import DynamicVocabForCausalLM
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary

require("lm_eval", extra="harness")
HFLM: Any = require("lm_eval.models.huggingface", extra="harness").HFLM
register_model: Any = require("lm_eval.api.registry", extra="harness").register_model

_CACHE = {f"cache_{field.name}": field.name for field in fields(NeuralCache)}


class _OneKind(HFLM):
    """What both models share: the check of the model's kind, and the precision that lm-eval was asked for."""

    _name = "hf-targets"

    def _get_backend(self, config: Any, backend: str = "default", **kwargs: Any) -> None:
        right = "hf-targets-mdlm" if isinstance(config, MdlmConfig) else "hf-targets"
        if right != self._name:
            raise ValueError(f"{self._name} has no use for a model of {type(config).__name__}; choose {right}")
        if backend == "default" and config.is_encoder_decoder:
            backend = "seq2seq"  # lm-eval knows those of Transformers alone
        super()._get_backend(config, backend, **kwargs)

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = self.mixed_precision_dtype
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)


@register_model("hf-targets")
class TargetsLM(_OneKind):
    """lm-eval's model `hf`, with an ensemble of heads, phrases, or a neural cache.

    At ensemble weight 0 and without phrases and cache, results are those of the base model bit for bit. The settings
    belong to this object: the model keeps its own, so that several such objects may share it.

    Args:
        pretrained: The name or path of any model that the Auto classes load, or a model.
        ensemble_weight: Lambda in [0, 1] of a model with heads; None: that of its configuration.
        phrases: A `PhraseVocabulary`, or the folder of one, from which a model with a dynamic vocabulary generates.
            Log-likelihoods are those of tokens alone, as a text has one likelihood for each way to cut it.
        kwargs: As lm-eval's `hf` has them, and the settings of a `NeuralCache` by its names after "cache_":
            `cache_weight=0.2,cache_theta=30,cache_relative=True`. The cache of each request begins empty.
    Raises:
        ValueError: If a setting is out of range, or the model has no heads, no dynamic vocabulary, or no hidden states
            that a cache can follow.
    """

    def __init__(
        self,
        pretrained: Any,
        *args: Any,
        ensemble_weight: float | None = None,
        phrases: PhraseVocabulary | str | None = None,
        **kwargs: Any,
    ) -> None:
        cache = {_CACHE[name]: kwargs.pop(name) for name in _CACHE if name in kwargs}
        super().__init__(pretrained, *args, **kwargs)
        core = unwrapped(self.model)
        self._own: dict[str, Any] = {} if ensemble_weight is None else {"ensemble_weight": ensemble_weight}
        if ensemble_weight is not None:
            self._needs(isinstance(core, MultiTokenModel), "heads", "ensemble_weight")
            core._check_weight(ensemble_weight)
        self.phrases: PhraseVocabulary | None = None
        if phrases is not None:
            self._needs(isinstance(core, DynamicVocabForCausalLM), "dynamic vocabulary", "phrases")
            self._needs(not cache, "neural cache over phrases", "cache_weight")
            self.phrases = PhraseVocabulary.load(phrases, self.tokenizer) if isinstance(phrases, str) else phrases
        self.cache = NeuralCache(**cache) if cache else None
        if self.cache is not None:
            weight = getattr(core.config, "ensemble_weight", None) if ensemble_weight is None else ensemble_weight
            self._needs(not weight, "neural cache over an ensemble", "cache_weight, or give ensemble_weight=0")
            cache_processor(self.cache, self.model)  # raises an error if it cannot follow this model

    def _needs(self, holds: bool, what: str, argument: str) -> None:
        if not holds:
            raise ValueError(f"{type(unwrapped(self.model)).__name__} has no {what}; leave out {argument}")

    def _model_call(self, inps: Tensor, attn_mask: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        """Return logits (batch, time, vocab), or logarithms of probabilities with the cache mixed in."""
        source = {} if labels is None else {"attention_mask": attn_mask, "labels": labels}
        cached = self.cache is not None and self.cache.weight > 0
        reading = output_inputs(unwrapped(self.model)) if cached else nullcontext([])
        with torch.no_grad(), self._autocast(), reading as states:
            logits = self.model(input_ids=inps, **source, **self._own).logits
        return self._with_cache(logits, states[0].to(logits.device), inps) if cached else logits

    def _with_cache(self, logits: Tensor, states: Tensor, ids: Tensor) -> Tensor:
        assert self.cache is not None
        mixed, memory = logits.float().log_softmax(dim=-1), self.cache.memory(len(ids), states)
        for time in range(ids.shape[1]):
            mixed[:, time] = self.cache.mix(mixed[:, time], states[:, time], memory)
            memory.append(states[:, time : time + 1][:, : ids.shape[1] - 1 - time], ids[:, time + 1 : time + 2])
        return mixed

    def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **settings: Any) -> Tensor:
        """Return the prompts (batch, time) with their continuations, whose phrases are expanded into tokens."""
        following = nullcontext() if self.cache is None else cache_processor(self.cache, self.model)
        if self.phrases is not None:
            settings |= {"phrases": self.phrases, "max_new_static_tokens": max_length - context.shape[1]}
        with following as processor:
            if processor is not None:
                settings["logits_processor"] = [processor]
            ids = super()._model_generate(context, max_length, stop, **self._own, **settings)
        if self.phrases is None:
            return ids
        expansion = Expansion([self.phrases])
        rows = [torch.tensor(row, dtype=ids.dtype) for row in expansion.rows(ids[:, context.shape[1] :])]
        return torch.cat([context, padded_rows(rows, self.tokenizer.pad_token_id)[0].to(context.device)], dim=1)


@register_model("hf-targets-mdlm")
class MaskedDiffusionLM(_OneKind):
    """A masked diffusion model in lm-eval: log-likelihoods by their lower bound, and texts by filling in masks.

    A log-likelihood is minus the negative evidence lower bound of the continuation, whose context is never masked. It
    is the mean of `num_draws` estimates; each masks the continuation at `num_times` times, spread evenly in (0, 1].
    Continuations of one context are masked by the same random numbers, so that their differences have less noise.
    A continuation counts as greedy if it is what the model fills in, the most probable token of each step first.

    In `generate_until` as many masks as there may be new tokens follow the prompt. A prompt that has mask tokens itself
    is filled in there instead, and the answer is what was filled in.

    Args:
        pretrained: The name or path of an `MdlmForMaskedDiffusion`, or the model.
        num_draws, num_times: The passes for one log-likelihood are their product.
        bound_seed: Of times and masks; with the context it determines all of them.
        sampler, num_steps: As `generate` has them; by default one evaluation of the network for each new token.
        kwargs: As lm-eval's `hf` has them. Texts are encoded without special tokens unless `add_bos_token` is given.
    Attributes:
        standard_errors: Of each log-likelihood so far, in nats, over the draws; None with one draw. The mean stands in
            the results of lm-eval under `config`, as `bound_standard_error`.
    Raises:
        ValueError: If the model is of another kind, or a number is below 1.
    Source: Sahoo et al. 2024, "Simple and Effective Masked Diffusion Language Models" (the bound).
    """

    AUTO_MODEL_CLASS, _name = AutoModelForMaskedLM, "hf-targets-mdlm"

    def __init__(
        self,
        pretrained: Any,
        *args: Any,
        num_draws: int = 4,
        num_times: int = 8,
        bound_seed: int = 0,
        sampler: str = "confidence",
        num_steps: int | None = None,
        batch_size: int | str | None = 1,
        **kwargs: Any,
    ) -> None:
        batch_size = 8 if str(batch_size).startswith("auto") else batch_size
        kwargs = {"add_bos_token": False, **kwargs, "backend": "causal"}
        super().__init__(pretrained, *args, batch_size=batch_size, **kwargs)
        self.num_draws, self.num_times, self.bound_seed = num_draws, num_times, bound_seed
        self.sampler, self.num_steps, self._mask = sampler, num_steps, self.model.config.mask_token_id
        self.standard_errors: list[float | None] = []
        self._noise([])  # raises an error if a number is out of range

    @property
    def eot_token_id(self) -> int:
        """The token after which nothing of a generated text counts."""
        names = ("eos_token_id", "sep_token_id", "pad_token_id")
        return next(found for name in names if (found := getattr(self.tokenizer, name)) is not None)

    @property
    def prefix_token_id(self) -> int:
        """The context of a text that has none."""
        named = (self.custom_prefix_token_id, self.tokenizer.bos_token_id, self.tokenizer.cls_token_id)
        return next((found for found in named if found is not None), self.eot_token_id)

    @property
    def max_length(self) -> int:
        """One less than the model reads, as lm-eval counts the tokens that a causal model would read."""
        return self._max_length or self.model.config.max_position_embeddings - 1

    def get_model_info(self) -> dict[str, Any]:
        """Return what lm-eval stores beside results: also how likelihoods were estimated, and their mean error."""
        errors = [error for error in self.standard_errors if error is not None]
        told = {f"bound_{name}": getattr(self, name) for name in ("num_draws", "num_times")}
        told |= {"bound_seed": self.bound_seed, "bound_standard_error": sum(errors) / len(errors) if errors else None}
        return {**super().get_model_info(), **told}

    def _noise(self, context: Sequence[int]) -> EvaluationNoise:
        seed = np.random.SeedSequence([self.bound_seed, *context]).generate_state(1)[0]
        return EvaluationNoise(self.model, self.num_times, num_draws=self.num_draws, seed=int(seed))

    def _loglikelihood_tokens(
        self, requests: list[Any], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """Return the bound of each request (text, context, continuation), and whether the model would write it."""
        answers, errors = [(0.0, False)] * len(requests), cast(list[float | None], [None] * len(requests))
        with progress(len(requests), "bounding log-likelihoods", unit="request") as bar:
            for numbers in _same_context(requests, override_bs or self.batch_size):
                chunk = [requests[number] for number in numbers]
                rows = [torch.tensor((one[1] + one[2])[-self.max_length - 1 :]) for one in chunk]
                targets = [row.clone() for row in rows]
                for one, row in zip(chunk, targets, strict=True):
                    row[: max(len(row) - len(one[2]), 0)] = IGNORED
                asked = chunk[0][0] is not None  # else only the perplexity of a text is
                noise = self._noise(chunk[0][1] if asked else rows[0].tolist())
                draws = self._row_nelbos(noise, rows, targets)
                greedy = self._are_greedy(rows, targets) if asked else [False] * len(chunk)
                for number, nelbos, is_greedy in zip(numbers, draws.tolist(), greedy, strict=True):
                    mean, errors[number] = mean_and_standard_error(nelbos)
                    answers[number] = -mean, is_greedy
                    if asked:
                        self.cache_hook.add_partial("loglikelihood", requests[number][0], answers[number])
                bar.update(len(chunk))
        self.standard_errors += errors
        return answers

    def _row_nelbos(self, noise: EvaluationNoise, rows: list[Tensor], targets: list[Tensor]) -> Tensor:
        """Return the bound of each row's targets, (rows, draws), in float64 on the CPU."""
        ids, mask = padded_rows([row for row in rows for _ in range(self.num_times)])
        labels, _ = padded_rows([row for row in targets for _ in range(self.num_times)], IGNORED)
        indices = [*range(self.num_times)] * len(rows)
        with self._autocast():
            nelbos = noise.row_nelbos(self.model, indices, *(one.to(self.device) for one in (ids, labels, mask)))
        return nelbos.cpu().double().unflatten(0, (len(rows), self.num_times)).mean(dim=1)

    def _are_greedy(self, rows: list[Tensor], targets: list[Tensor]) -> list[bool]:
        (ids, mask), (labels, _) = padded_rows(rows), padded_rows(targets, IGNORED)
        canvas = ids.masked_fill(labels != IGNORED, self._mask).to(self.device)
        best_first: dict[str, Any] = {"sampler": "confidence", "temperature": 0.0, "tokens_per_step": 1}
        return (self._fill(canvas, mask.to(self.device), **best_first).cpu() == ids).all(dim=1).tolist()

    def _fill(self, ids: Tensor, attention_mask: Tensor, **settings: Any) -> Tensor:
        with self._autocast():
            return self.model.generate(ids, attention_mask=attention_mask, **settings)

    def _model_generate(
        self,
        context: Tensor,
        max_length: int,
        stop: list[str],
        *,
        attention_mask: Tensor,
        do_sample: bool | None = None,
        temperature: float = 0.0,
        top_p: float | None = None,
        **others: Any,
    ) -> Tensor:
        """Return the prompts (batch, time) with what follows them, or with the tokens that replace their masks."""
        if others:
            raise ValueError(f"masks are filled by temperature and top_p, got {', '.join(others)} too; leave these out")
        temperature = (temperature or 1.0) if do_sample else 0.0 if do_sample is False else temperature
        settings = {"sampler": self.sampler, "num_steps": self.num_steps, "temperature": temperature, "top_p": top_p}
        holes = (context == self._mask) & attention_mask.bool()
        inside, time = holes.any(dim=1), context.shape[1]
        longest = max(max_length - time, int(holes.sum(dim=1).max()))
        answers = context.new_full((len(context), longest), self.eot_token_id)
        if inside.any():
            filled = self._fill(context[inside], attention_mask[inside], **settings)
            for row, number in zip(filled, inside.nonzero()[:, 0], strict=True):
                answers[number, : int(holes[number].sum())] = row[holes[number]]
        if not inside.all():
            prompt = context[~inside], attention_mask[~inside]
            answers[~inside, : max_length - time] = self._fill(*prompt, max_length=max_length, **settings)[:, time:]
        ended = (answers == self.eot_token_id).cumsum(dim=1) > 0
        return torch.cat([context, answers.masked_fill(ended, self.eot_token_id)], dim=1)


def _same_context(requests: Sequence[Any], batch_size: int) -> Iterator[list[int]]:
    """Yield the numbers of the requests of each batch, which have one context; a measured text is alone."""
    groups: dict[Any, list[int]] = {}
    for number, (asked, context, _) in enumerate(requests):
        groups.setdefault(number if asked is None else tuple(context), []).append(number)
    for numbers in groups.values():
        yield from (numbers[start : start + batch_size] for start in range(0, len(numbers), batch_size))


if __name__ == "__main__":
    require("lm_eval.__main__", extra="harness").cli_evaluate()
