"""Data sets of the `datasets` library: saved in a folder, or on the Hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import datasets
from datasets import Dataset, DatasetDict


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide the progress bars of `datasets`, and show them again afterwards if they were shown."""
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def load_parts(name_or_path: str, config_name: str | None) -> dict[str, Dataset]:
    """Return the splits of a data set by their names; one without splits is train.

    Args:
        name_or_path: A folder written by `save_to_disk`, or anything else that `datasets.load_dataset` takes.
        config_name: Which configuration of a data set to load.
    Raises:
        ValueError: If it cannot be loaded, or a folder from `save_to_disk` is asked for a configuration.
    """
    path = Path(name_or_path).expanduser()
    saved = (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()
    if saved and config_name is not None:
        raise ValueError(f"a folder from save_to_disk has no configurations, got {config_name!r}; leave it out")
    found = datasets.load_from_disk(str(path)) if saved else load_named(name_or_path, config_name)
    parts = found if isinstance(found, DatasetDict) else {"train": found}
    return {str(split): part for split, part in parts.items()}


def load_named(name: str, config_name: str | None) -> DatasetDict:
    """Return what `datasets.load_dataset` finds.

    Raises:
        ValueError: If it finds nothing.
    """
    try:
        return datasets.load_dataset(name, config_name)
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name!r} is neither a local file or folder that can be read nor a data set that loads from the Hub "
            f"({type(error).__name__}: {error}); check the name, the network, and config_name={config_name!r}"
        ) from error
