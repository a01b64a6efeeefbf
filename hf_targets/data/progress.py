"""Progress bars for work that takes seconds, switched off with those of Transformers."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import distributed
from transformers.utils import logging

SECONDS_BEFORE_A_BAR = 2.0

_shows_one: ContextVar[bool] = ContextVar("_shows_one", default=False)


@contextmanager
def progress(total: int | None, description: str, *, unit: str) -> Iterator[Any]:
    """Give a bar whose `update(count)` tells how much more is done; it closes at the end of the `with`, on errors too.

    It appears after two seconds. There is none after `transformers.utils.logging.disable_progress_bar()`, with
    `TQDM_DISABLE=1`, in processes other than the first of a distributed run, and for a part of work with a bar.

    Args:
        total: How much there is to do; None if that is not known.
        description: Of the work, such as "encoding texts".
        unit: What is counted, in the singular.
    """
    is_other_process = distributed.is_available() and distributed.is_initialized() and distributed.get_rank() > 0
    hidden = {"disable": True} if _shows_one.get() or is_other_process else {}
    token = _shows_one.set(True)
    try:
        with logging.tqdm(total=total, desc=description, unit=f" {unit}", delay=SECONDS_BEFORE_A_BAR, **hidden) as bar:
            yield bar
    finally:
        _shows_one.reset(token)
