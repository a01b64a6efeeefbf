"""Settings of a recipe on masked diffusion: the curves of its models, and how they write samples."""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
from transformers import PreTrainedTokenizerBase

from hf_targets.curves.configuration import CurveConfig
from hf_targets.curves.sentence_curve import SentenceCurve
from hf_targets.masked_diffusion.sampling.sampler import Sampler
from hf_targets.masked_diffusion.sampling.samplers import SAMPLERS, make_sampler
from hf_targets.training.settings import parse_mapping

_NUM_STEPS = 32


@dataclass
class SamplerSettings:
    """A sampler by its name, and its options."""

    settings_title: ClassVar[str] = "Samples"

    sampler: str = field(
        default="cached", metadata={"help": f"One of {', '.join(SAMPLERS)}, or a registered one, for the samples."}
    )
    sampler_options: str = field(
        default="{}", metadata={"help": f"JSON: its options. Without num_steps at most {_NUM_STEPS} steps."}
    )

    def make_sampler(self, max_length: int) -> Sampler:
        """Return the sampler, for texts of at most `max_length` tokens.

        Raises:
            ValueError: If there is none of that name, or an option is out of range, missing or not one of its own.
        """
        options = parse_mapping(self.sampler_options, "sampler_options")
        known = {option.name for option in fields(SAMPLERS[self.sampler])}
        if unknown := sorted(set(options) - known):
            raise ValueError(f"sampler_options of {self.sampler} are {', '.join(known)}, got {', '.join(unknown)}")
        if "num_steps" in known:
            options.setdefault("num_steps", min(_NUM_STEPS, max_length))
        return make_sampler(self.sampler, **options)

    def sample(self, model: Any, tokenizer: PreTrainedTokenizerBase, max_length: int, seed: int) -> str:
        """Return a text that a masked diffusion model generates, without its padding."""
        generator = torch.Generator().manual_seed(seed)
        ids = model.generate(max_length=max_length, sampler=self.make_sampler(max_length), generator=generator)
        return str(tokenizer.decode([id_ for id_ in ids[0].tolist() if id_ != tokenizer.pad_token_id]))


def curve_rows(rows: str, max_length: int) -> dict[str, CurveConfig | None]:
    """Return the curve of each model, by its name, once it is certain that it can hold the longest text.

    Args:
        rows: JSON: names of models, and the fields of their `CurveConfig`; null for plain masked diffusion.
        max_length: Tokens of the longest text.
    Raises:
        ValueError: If it is no such mapping, a field is unknown or out of range, or a curve cannot hold the text.
    """
    curves: dict[str, CurveConfig | None] = {}
    known = CurveConfig.__annotations__
    for name, given in parse_mapping(rows, "rows").items():
        if given is not None and not isinstance(given, dict):
            raise ValueError(f"{name} must have the fields of a curve, as a mapping, or null for none, got {given!r}")
        if unknown := set(given or {}) - set(known):
            raise ValueError(f"{name} has unknown fields of a curve: {', '.join(unknown)}; known: {', '.join(known)}")
        curves[name] = curve = None if given is None else CurveConfig(**given)
        if curve is not None:
            SentenceCurve(curve).to_control_points(torch.zeros(1, max_length, 1))
    return curves
