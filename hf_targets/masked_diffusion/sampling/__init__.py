"""Sampling from masked diffusion models: the order in which tokens are unmasked, by name, and how they are drawn."""

from dataclasses import fields
from typing import Any

from hf_targets.masked_diffusion.sampling.sampler import SAMPLERS, Sampler
from hf_targets.registry import import_folder

import_folder(__name__, __path__)


def make_sampler(sampler: str | Sampler, **options: Any) -> Sampler:
    """Return the sampler with this name and these options; an option that is None has its default.

    Raises:
        ValueError: If the name is unknown, a value is out of range, or the sampler does not have an option.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(sampler, Sampler):
        if given:
            raise ValueError(f"{sampler} has its options already, got {', '.join(given)} beside it; leave them out")
        return sampler
    cls = SAMPLERS[sampler]
    known = [option.name for option in fields(cls)]
    if unknown := given.keys() - set(known):
        raise ValueError(
            f"sampler={sampler!r} has the options {', '.join(known) or 'none'}, got {', '.join(sorted(unknown))}; "
            "leave it out, or choose another sampler"
        )
    return cls(**given)
