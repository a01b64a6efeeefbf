"""Checkpoints are read strictly: nothing missing, nothing left over."""

from os import PathLike


def check_complete(where: str | PathLike, missing: set[str], extra: set[str], mismatched: list[str]) -> None:
    """Check that a checkpoint and the model it was read into have the same tensors.

    Raises:
        ValueError: If they have not, with the names of the tensors.
    """
    wrong = {"missing": sorted(missing), "not in the model": sorted(extra), "of another shape": sorted(mismatched)}
    told = [f"{what}: {', '.join(names)}" for what, names in wrong.items() if names]
    if told:
        raise ValueError(
            f"the checkpoint at {where} does not fit its configuration; {'; '.join(told)}. It is cut short, or its "
            "config.json is of another model"
        )
