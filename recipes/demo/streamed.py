"""What a generation passes to its streamer, as it comes: for pages that show a text while it is written."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from hf_targets.phrases.vocabulary.tokenization import character_ends
from lab.speed import row_passes


def token_texts(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the characters that each token completes, which are together the text; special tokens have none."""
    text = str(tokenizer.decode(list(ids), skip_special_tokens=True))
    ends = [0, *character_ends(ids, range(1, len(ids) + 1), tokenizer, skip_special_tokens=True)]
    return [text[begin:end] for begin, end in pairwise(ends)]


class _Queue(BaseStreamer):
    """Keeps what it is given until it is read, with the passes so far."""

    def __init__(self, passes: list[int]) -> None:
        self.items: SimpleQueue = SimpleQueue()
        self.passes, self.is_read = passes, True

    def put(self, value: Tensor) -> None:
        if not self.is_read:
            raise RuntimeError("nobody reads this text any more")
        self.items.put((value, len(self.passes)))

    def end(self) -> None:
        """Do nothing: the text has ended when its generation has."""


def streamed(model: PreTrainedModel, write: Callable[[BaseStreamer], Any]) -> Iterator[tuple[Tensor, int]]:
    """Yield each value that `write` puts into its streamer, the prompt first, with the passes of the model so far.

    `write` runs in a thread of its own. What it raises is raised here. It ends at its next token if the caller leaves.
    """
    with row_passes(model) as passes, ThreadPoolExecutor(max_workers=1) as threads:
        streamer = _Queue(passes)
        written = threads.submit(write, streamer)
        written.add_done_callback(lambda _: streamer.items.put(None))
        try:
            yield from iter(streamer.items.get, None)
            written.result()
        finally:
            streamer.is_read = False
