"""What a script does before its slow imports: alone, it explains itself; stopped by Ctrl-C, it ends with one line.

It also leaves out of the output what other libraries say about things that a user cannot change.
"""

import logging
import os
import sys
import warnings
from pathlib import Path
from types import TracebackType

NOISE = {
    "DeepSpeed": "Setting accelerator to CPU",  # said on a machine without a GPU where DeepSpeed is installed
    "transformers.modeling_utils": "`loss_type=None` was set in the config",  # whose name tells no loss: GPT-2's
    "transformers.trainer_utils": "mtime",  # how checkpoints are sorted by age
}
"""To the name of a logger what it says in vain."""
DEPRECATED = ("`(is_)?gradient_checkpointing` is deprecated",)
"""What TRL and PEFT still call by its old name, whatever a user does."""


def _ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("\nstopped; what has been saved stays, and the same command goes on where it can", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def leave_noise_out() -> None:
    """Leave out what is said in vain, and bars of work of less than two seconds; that is before tqdm is imported."""
    os.environ.setdefault("TQDM_DELAY", "2")
    for name, told in NOISE.items():
        logging.getLogger(name).addFilter(lambda record, told=told: told not in record.getMessage())
    for text in DEPRECATED:
        warnings.filterwarnings("ignore", text, FutureWarning)


if Path(sys.argv[0]).resolve().is_relative_to(Path(__file__).parents[1]):
    if len(sys.argv) == 1:
        print((sys.modules["__main__"].__doc__ or "").strip())
        raise SystemExit
    sys.excepthook = _ended
    leave_noise_out()
