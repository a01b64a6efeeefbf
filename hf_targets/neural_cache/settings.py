"""Settings of a recipe that say which caches are tried, and what they are measured on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from transformers import PreTrainedModel

from hf_targets.neural_cache.cache import NeuralCache
from hf_targets.neural_cache.perplexity import WITHOUT, cached_perplexities, search_cache


@dataclass
class CacheSettings:
    """The caches among which the best on the validation text is chosen.

    Departs: the published programs have fixed settings, and a cache that waits until its window is full.
    """

    settings_title: ClassVar[str] = "Continuous cache"

    cache_window: int = field(default=500, metadata={"help": "W: hidden states that the cache remembers."})
    cache_thetas: list[float] = field(
        default_factory=lambda: [0.3, 0.662, 1.0], metadata={"help": "Thetas to choose from."}
    )
    cache_weights: list[float] = field(
        default_factory=lambda: [0.0, 0.05, 0.1, 0.1279, 0.15, 0.2, 0.25, 0.3],
        metadata={"help": "Lambdas to choose from, each in [0, 1); 0 is no cache."},
    )

    def __post_init__(self) -> None:
        if not self.cache_thetas or not self.cache_weights:
            raise ValueError("cache_thetas and cache_weights must each have a value, got none")
        for theta in self.cache_thetas:
            for weight in self.cache_weights:
                NeuralCache(self.cache_window, theta, weight)  # raises an error if one is out of range

    def measured(
        self,
        model: PreTrainedModel,
        validation: Iterable[Mapping[str, Any]],
        test: Iterable[Mapping[str, Any]],
        *,
        carries_state: bool = False,
    ) -> tuple[NeuralCache, dict[str, float]]:
        """Return the best cache on validation blocks, and the perplexities per word of test blocks without and with it.

        Args:
            validation, test: As `pack_blocks` makes them.
            carries_state: As for `cached_perplexities`.
        """
        grid = self.cache_window, self.cache_thetas, self.cache_weights
        cache = search_cache(model, validation, *grid, carries_state=carries_state)
        found = cached_perplexities(model, test, {"cache": cache}, carries_state=carries_state)
        return cache, {
            name: one.per_token if one.per_word is None else one.per_word
            for name, one in (("word perplexity", found[WITHOUT]), ("with cache", found["cache"]))
        }
