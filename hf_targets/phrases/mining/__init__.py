"""Finding the phrases of texts; the miners by name."""

from hf_targets.phrases.mining.miner import MINERS as MINERS
from hf_targets.registry import import_folder

import_folder(__name__, __path__)
