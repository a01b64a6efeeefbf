"""A streamer that gives another one the tokens of each phrase."""

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from hf_targets.phrases.decoding.expansion import Expansion


class PhraseStreamer(BaseStreamer):
    """Gives a streamer made for tokens a text with phrases: each streams as its words."""

    def __init__(self, streamer: BaseStreamer, expansion: Expansion) -> None:
        self.streamer = streamer
        self.expansion = expansion

    def put(self, value: Tensor) -> None:
        """Pass on ids (rows, time) or (rows,), those of one step."""
        rows = value if value.ndim == 2 else value[:, None]
        if len(rows) > 1:
            self.streamer.put(value)  # which refuses several rows, or has its own way with them
            return
        tokens = torch.tensor(self.expansion.rows(rows), dtype=torch.long)
        self.streamer.put(tokens if value.ndim == 2 else tokens[0])

    def end(self) -> None:
        """Pass on that the text has ended."""
        self.streamer.end()
