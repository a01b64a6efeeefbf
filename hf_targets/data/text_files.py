"""Text files, plain or compressed, and where the files of known corpora lie."""

import gzip
import lzma
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

DATA_VARIABLE = "HF_TARGETS_DATA"
"""The environment variable that names the folder with the folders of known corpora."""

_OPENERS = {".gz": gzip.open, ".xz": lzma.open}
COMPRESSIONS = ("", *_OPENERS)


def read_lines(path: Path, *, newline: str | None = None) -> list[str]:
    r"""Return the lines of a UTF-8 text file, plain, .gz or .xz, each with its line end.

    Args:
        newline: As of `open`: with None each of "\\n", "\\r" and "\\r\\n" ends a line, and is read as "\\n"; with
            "\\n" that one alone ends a line.
    Raises:
        ValueError: If the file is not UTF-8, or its compressed data is damaged.
    """
    try:
        with _OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8-sig", newline=newline) as lines:
            return list(lines)
    except UnicodeDecodeError as error:
        raise ValueError(f"a text file must be UTF-8, and {path} is not ({error}); convert it") from error
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise ValueError(
            f"a {path.suffix} file must be whole, and {path} is not ({error}); compress it again"
        ) from error


def files_below(folder: str, names: Sequence[str], corpus: str) -> list[Path]:
    """Return files, each plain, .gz or .xz, in a folder below the one that `HF_TARGETS_DATA` names.

    Raises:
        ValueError: If the variable is not set, or a file is missing or there twice.
    """
    data = os.environ.get(DATA_VARIABLE)
    paths = [Path(data or "", folder, f"{name}{suffix}") for name in names for suffix in COMPRESSIONS]
    files = [path for path in paths if data and path.is_file()]
    if [without_compression(file.name) for file in files] != list(names):
        raise ValueError(
            f"{corpus!r} is read from the folder {folder} below the one that {DATA_VARIABLE} names, with one each of "
            f"{' and '.join(f'{name}(.gz|.xz)' for name in names)}, got {DATA_VARIABLE}={data!r} and there "
            f"{[file.name for file in files]}; put them there"
        )
    return files


def without_compression(name: str) -> str:
    """Return the name of a file without .gz or .xz.

    >>> without_compression("train.de.gz")
    'train.de'
    """
    return name.removesuffix(".gz").removesuffix(".xz")
