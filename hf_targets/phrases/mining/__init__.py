"""Finding the phrases of texts; the miners by name."""

from typing import Any

from hf_targets.phrases.mining.chunks import ChunkPhrases
from hf_targets.phrases.mining.constituency import ConstituencyPhrases
from hf_targets.phrases.mining.forward_maximum_matching import ForwardMaximumMatching
from hf_targets.phrases.mining.ngrams import TokenNgrams, WordNgrams
from hf_targets.registry import Registry

MINERS: Registry[Any] = Registry("phrase miner", reserved=("none",))
"""Miners by the name that recipes take; `MINERS.register("mine", Mine)` adds one.

A class has `spans`, as a `PhraseMiner`, and a class method `for_task(task)` that makes a miner for a `MiningTask`."""

MINERS.register("words", WordNgrams)
MINERS.register("tokens", TokenNgrams)
MINERS.register("fmm", ForwardMaximumMatching)
MINERS.register("parsing", ConstituencyPhrases)
MINERS.register("chunks", ChunkPhrases)
