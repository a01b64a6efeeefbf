"""`generate` of a Gaussian diffusion model."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# (a mixin: the model defines configuration, process, encode, lengths, denoise and word_logits)

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, PreTrainedTokenizerBase
from transformers.utils.generic import ModelOutput

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.generation import generation_setting
from hf_targets.gaussian_diffusion.process import decoding_steps
from hf_targets.gaussian_diffusion.selection import select_by_bleu
from hf_targets.maths.ensemble import check_ensemble_weight

SELECTIONS = ("minimum_bayes_risk", "confidence", "rescoring")
DEFAULTS: dict[str, Any] = {
    "num_reverse_steps": 20,
    "num_skipped_steps": None,
    "num_lengths": 1,
    "num_noises": 1,
    "selection": "minimum_bayes_risk",
    "noise_factor": 1.0,
    "clamp": False,
    "ensemble_weight": 0.0,
}
"""What `generate` does where neither the call nor `generation_config` says otherwise."""
_LEAST = {"num_reverse_steps": 1, "num_skipped_steps": 0, "num_lengths": 1, "num_noises": 1}
_INSTEAD = {
    "max_length": "lengths",
    "max_new_tokens": "lengths",
    "num_beams": "num_lengths and num_noises",
    "num_return_sequences": "return_dict_in_generate=True, which gives all candidates",
    "do_sample": "generator and noise_factor",
}
_NOTHING = {"num_beams": 1, "num_return_sequences": 1, "do_sample": False}
"""Values in a `generation_config` that ask for nothing."""
_OF_TRAINERS = ("labels", "synced_gpus")
"""What `Seq2SeqTrainer` gives to `generate` beside settings; steps are as many in every process."""


@dataclass
class GaussianGenerationOutput(ModelOutput):
    """The output of `generate` with `return_dict_in_generate`.

    Attributes:
        sequences: (batch, time), the chosen texts, with padding after their ends.
        candidates: (batch, num_lengths x num_noises, time), all texts, those of one length beside each other.
        confidences: (batch, candidates), the mean log-probability of each candidate's tokens.
        num_evaluations: How often the decoder ran on the batch.
        predicted_embeddings: Of each evaluation, (batch, candidates, time, latent), what the decoder predicted for all
            candidates; None unless requested.
        control_points: Likewise of the predicted curves, (batch, candidates, points, latent); None without a curve.
    """

    sequences: Tensor | None = None
    candidates: Tensor | None = None
    confidences: Tensor | None = None
    num_evaluations: int | None = None
    predicted_embeddings: tuple[Tensor, ...] | None = None
    control_points: tuple[Tensor, ...] | None = None


class GaussianGeneration:
    """`generate` for a model with `encode`, `lengths`, `denoise`, `process` and `word_logits`."""

    adjust_generation_fn = GenerationMixin.adjust_generation_fn  # reads generation_config.json

    @classmethod
    def can_generate(cls) -> bool:
        """Return that it can, so that checkpoints have a `generation_config.json`."""
        return True

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> Any:
        """Raise a ValueError: this is for texts that are written token by token. Adapters look for it."""
        raise ValueError("a Gaussian diffusion model writes all tokens at once; call its own generate")

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        generator: torch.Generator | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        rescorer: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
        return_dict_in_generate: bool | None = None,
        output_predictions: bool = False,
        **settings: Any,
    ) -> Tensor | GaussianGenerationOutput:
        """Write a text for each source.

        Every candidate begins as noise of its length. In each step the decoder predicts the clean embeddings, and a
        reverse step leads from the state towards them. The text is the most probable word at each position of the last
        prediction. To generate in several threads at once, put the model into evaluation mode.

        Settings, from the call or, where it has none or None, from `generation_config`:

        | setting             | default              | meaning                                                        |
        |---------------------|----------------------|----------------------------------------------------------------|
        | `num_reverse_steps` | 20                   | steps from noise to text, evenly spread over the schedule      |
        | `num_skipped_steps` | 5; `dinoiser`: 0     | how many of the last are left out                              |
        | `num_lengths`       | 1                    | lengths that are tried around the most probable one            |
        | `num_noises`        | 1                    | texts of each length                                           |
        | `selection`         | `minimum_bayes_risk` | or `confidence` of the tokens, or `rescoring` by another model |
        | `noise_factor`      | 1                    | by which all noise is multiplied                               |
        | `clamp`             | False                | whether predictions become embeddings of words in each step    |
        | `ensemble_weight`   | 0                    | lambda, the share of what heads predict from earlier positions |

        Args:
            input_ids: (batch, source).
            attention_mask: (batch, source), 0 at padding. None: where there is no padding token.
            inputs: Another name of `input_ids`, which Transformers has.
            generation_config: What it has not is that of the model's own.
            lengths: (batch,), of the texts, end token included; None: predicted.
            generator: Draws all noise, for all rows at once; None: the global generator.
            tokenizer: For `minimum_bayes_risk`, which compares words then; None: it compares tokens.
            rescorer: For `rescoring`: the scores (rows,) of texts (rows, time) for sources (rows, source) with masks,
                the higher the better.
            return_dict_in_generate: Whether to return all candidates, too; None: as `generation_config` says.
            output_predictions: Whether to return all candidates, and what the decoder predicted in each step.
        Returns: (batch, time), or a `GaussianGenerationOutput`.
        Raises:
            ValueError: If a setting is unknown or out of range, `rescoring` has no rescorer, or there is no source.
        Source: Gao et al. 2024, section 5.1; `noise_factor` of decoding is 1 in the published scripts, whatever that of
            training is.
        """
        settings = {name: value for name, value in settings.items() if name not in _OF_TRAINERS and value is not None}
        sources = [given for given in (input_ids, inputs) if given is not None]
        if len(sources) != 1:
            raise ValueError(f"generate reads the source as input_ids or inputs, one of them, got {len(sources)}")
        input_ids = sources[0]
        chosen = self._settings(generation_config, settings, has_rescorer=rescorer is not None)
        steps = decoding_steps(self.config, chosen["num_reverse_steps"], chosen["num_skipped_steps"])
        with without_dropout(self):
            source = self.encode(input_ids, attention_mask)
            num_lengths, num_noises = chosen["num_lengths"], chosen["num_noises"]
            if lengths is None:
                logits = self.lengths(source.hidden, source.mask)
                tried = self.lengths.candidates(logits, source.mask, num_lengths)
            else:
                tried = self._given_lengths(torch.as_tensor(lengths), source.mask, settings.get("num_lengths", 1))
            tried = tried.repeat_interleave(num_noises, dim=1)
            count, rows = tried.shape[1], tried.flatten()
            kept: list[Any] | None = [] if output_predictions else None
            ids, confidences = self._written(source.repeated(count), rows, steps, chosen, generator, kept)
        texts, confidences = ids.unflatten(0, (-1, count)), confidences.view(-1, count)
        best = self._best(chosen["selection"], texts, confidences, tokenizer, rescorer, input_ids, source.mask)
        sequences = texts[torch.arange(len(texts), device=texts.device), best]
        longest = int(tried.gather(1, best[:, None]).max())
        sequences = sequences[:, :longest]
        if return_dict_in_generate is None:
            told = generation_config, self.generation_config
            return_dict_in_generate = generation_setting("return_dict_in_generate", *told)
        if not return_dict_in_generate and kept is None:
            return sequences
        output = GaussianGenerationOutput(sequences, texts, confidences, len(steps))
        if kept:
            output.predicted_embeddings = tuple(one.embeddings.unflatten(0, (-1, count)) for one in kept)
            if kept[0].control_points is not None:
                output.control_points = tuple(one.control_points.unflatten(0, (-1, count)) for one in kept)
        return output

    def _settings(
        self, generation_config: GenerationConfig | None, settings: dict[str, Any], *, has_rescorer: bool
    ) -> dict[str, Any]:
        unknown, told = settings.keys() - DEFAULTS.keys(), (generation_config, self.generation_config)
        unknown |= {
            name for name in _INSTEAD for one in told if getattr(one, name, None) not in (None, _NOTHING.get(name))
        }
        if getattr(generation_config, "max_length", None) is None:  # Seq2SeqTrainer writes one into the model's own
            unknown -= {"max_length"} - settings.keys()
        if unknown:
            ways = [f"; in place of {name} give {_INSTEAD[name]}" for name in sorted(unknown) if name in _INSTEAD]
            raise ValueError(
                f"generate of this model has no setting {', '.join(sorted(unknown))}; there are {', '.join(DEFAULTS)}"
                + "".join(ways)
            )
        kept = {name: generation_setting(name, *told) for name in DEFAULTS}
        chosen = {**DEFAULTS, **{name: value for name, value in kept.items() if value is not None}, **settings}
        for name, least in _LEAST.items():
            value = chosen[name]
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(f"{name} must be an integer, {least} or more, got {value!r}")
        if not 0 <= chosen["noise_factor"] < float("inf"):
            raise ValueError(f"noise_factor must be 0 or more, and finite, got {chosen['noise_factor']}")
        check_ensemble_weight(chosen["ensemble_weight"])
        if chosen["selection"] not in SELECTIONS:
            raise ValueError(f"selection must be one of {', '.join(SELECTIONS)}, got {chosen['selection']!r}")
        if (chosen["selection"] == "rescoring") != has_rescorer:
            raise ValueError("selection='rescoring' and a rescorer are given together; give both, or leave both out")
        return chosen

    def _given_lengths(self, lengths: Tensor, mask: Tensor, num_lengths: int) -> Tensor:
        limit = self.config.max_position_embeddings
        if lengths.shape != mask.shape[:1] or lengths.is_floating_point() or num_lengths > 1:
            raise ValueError(f"lengths must be integers, one for each of {len(mask)} sources, with num_lengths=1")
        if not ((lengths >= 1) & (lengths <= limit)).all():
            raise ValueError(f"lengths must be in [1, {limit}], the model's positions, got {lengths.tolist()}")
        return lengths.to(mask.device)[:, None]

    def _written(
        self,
        source: Any,
        lengths: Tensor,
        steps: Any,
        chosen: dict[str, Any],
        generator: torch.Generator | None,
        kept: list[Any] | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the tokens (rows, time) and mean log-probabilities (rows,) of texts; `kept` gets all predictions."""
        width = int(lengths.max())
        keep = torch.arange(width, device=lengths.device) < lengths[:, None]
        shape = (len(lengths), width, self.config.latent_size)
        factor, kind = chosen["noise_factor"], source.hidden.dtype

        def noise() -> Tensor:
            return factor * self._drawn(torch.randn, shape, generator).to(kind)

        state = noise()
        predicted = torch.zeros_like(state)
        for step in steps:
            told = torch.full((len(lengths),), step.time, device=lengths.device)
            prediction = self.denoise(state, predicted, told, keep, source)
            if kept is not None:
                kept.append(prediction)
            predicted = self.ensemble(prediction, chosen["ensemble_weight"])
            if chosen["clamp"]:
                predicted = self.embedded(self.word_logits(predicted).argmax(dim=-1))
            state = step.of_prediction * predicted + step.of_state * state
            if step.std:
                state = state + step.std * noise()
        logits = self.word_logits(predicted).float()
        logits[..., self.config.pad_token_id] = -torch.inf  # Departs: the program may write padding inside a text
        scores, ids = logits.log_softmax(dim=-1).max(dim=-1)
        return (
            ids.masked_fill(~keep, self.config.pad_token_id),
            scores.masked_fill(~keep, 0.0).sum(dim=1) / lengths,
        )

    def _best(
        self,
        selection: str,
        texts: Tensor,
        confidences: Tensor,
        tokenizer: PreTrainedTokenizerBase | None,
        rescorer: Callable[[Tensor, Tensor, Tensor], Tensor] | None,
        input_ids: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Return the number of the chosen candidate of each source, (batch,)."""
        count = texts.shape[1]
        if count == 1:
            return torch.zeros(len(texts), dtype=torch.long, device=texts.device)
        if selection == "confidence":
            return confidences.argmax(dim=1)
        if rescorer is not None:
            sources = (rows.repeat_interleave(count, dim=0) for rows in (input_ids, mask))
            return rescorer(texts.flatten(0, 1), *sources).view(-1, count).argmax(dim=1)
        rows = [self._as_text(row, tokenizer) for row in texts.flatten(0, 1).tolist()]
        chosen = [select_by_bleu(rows[start : start + count]) for start in range(0, len(rows), count)]
        return torch.tensor(chosen, device=texts.device)

    def _as_text(self, ids: list[int], tokenizer: PreTrainedTokenizerBase | None) -> str:
        if tokenizer is not None:
            return str(tokenizer.decode(ids, skip_special_tokens=True))
        special = {self.config.pad_token_id, self.config.eos_token_id, self.config.bos_token_id}
        return " ".join(str(token) for token in ids if token not in special)
