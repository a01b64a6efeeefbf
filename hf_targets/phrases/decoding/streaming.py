"""A streamer that passes the tokens of each phrase to another streamer."""

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from hf_targets.phrases.decoding.expansion import Expansion


class PhraseStreamer(BaseStreamer):
    """A streamer that expands phrases into tokens, for a streamer made for tokens."""

    def __init__(self, streamer: BaseStreamer, expansion: Expansion) -> None:
        self.streamer = streamer
        self.expansion = expansion

    def put(self, value: Tensor) -> None:
        """Pass on ids: (rows, time), or (rows,) for one step."""
        rows = value if value.ndim == 2 else value[:, None]
        if len(rows) > 1:
            self.streamer.put(value)  # the streamer itself raises on several rows, or handles them
            return
        tokens = torch.tensor(self.expansion.rows(rows), dtype=torch.long)
        self.streamer.put(tokens if value.ndim == 2 else tokens[0])

    def end(self) -> None:
        """Tell the other streamer that the text has ended."""
        self.streamer.end()
