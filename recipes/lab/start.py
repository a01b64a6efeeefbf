"""What a script does before its slow imports: alone, it explains itself; stopped by Ctrl-C, it ends with one line.

It also leaves out of the output what other libraries say about things that a user cannot change.
"""

import logging
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

SECONDS_BEFORE_A_BAR = 2.0
NOISE = {
    "DeepSpeed": "Setting accelerator to CPU",  # said on a machine without a GPU where DeepSpeed is installed
    "transformers.modeling_utils": "`loss_type=None` was set in the config",  # whose name tells no loss: GPT-2's
    "transformers.trainer_utils": "mtime",  # how checkpoints are sorted by age
}
"""To the name of a logger what it says in vain."""


def _ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("\nstopped; what has been saved stays, and the same command goes on where it can", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def leave_noise_out() -> None:
    """Filter what is said in vain, and show bars of Transformers' only of what takes seconds."""
    from transformers.utils.logging import set_tqdm_hook

    def bar(factory: Any, args: Any, kwargs: Any) -> Any:
        return factory(*args, **{"delay": SECONDS_BEFORE_A_BAR, **kwargs})

    set_tqdm_hook(bar)
    for name, told in NOISE.items():
        logging.getLogger(name).addFilter(lambda record, told=told: told not in record.getMessage())


if Path(sys.argv[0]).resolve().is_relative_to(Path(__file__).parents[1]):
    if len(sys.argv) == 1:
        print((sys.modules["__main__"].__doc__ or "").strip())
        raise SystemExit
    sys.excepthook = _ended
    leave_noise_out()
