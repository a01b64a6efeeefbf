"""What a script does before its slow imports: alone, it explains itself; stopped by Ctrl-C, it ends with one line."""

import sys
from pathlib import Path
from types import TracebackType


def _ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("\nstopped; what has been saved stays, and the same command goes on where it can", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if Path(sys.argv[0]).resolve().is_relative_to(Path(__file__).parents[1]):
    if len(sys.argv) == 1:
        print((sys.modules["__main__"].__doc__ or "").strip())
        raise SystemExit
    sys.excepthook = _ended
