"""Text compression: steps per text, UTF-8 bytes per step, and sequence length relative to another tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class Compression:
    """How well a segmentation into steps compresses texts.

    Attributes:
        num_texts: Number of texts.
        steps_per_text: Mean number of steps per text; the paper calls it normalized sequence length.
        bytes_per_step: UTF-8 bytes of all texts over steps of all texts.
        mean_bytes_per_step: Mean over texts of each text's bytes per step; short texts count as much as long ones.
        relative_length: Number of steps over that of the reference segmentation; None without a reference.
    """

    num_texts: int
    steps_per_text: float
    bytes_per_step: float
    mean_bytes_per_step: float
    relative_length: float | None


def measure_compression(
    texts: Sequence[str], num_steps: Sequence[int], reference_steps: Sequence[int] | None = None
) -> Compression:
    """Return how well steps compress texts; a step is a token or a phrase.

    Args:
        texts: The generated texts; include the prefix only if `num_steps` counts its steps.
        num_steps: Number of steps of each text, such as the length of its generated row of tokens and phrases.
        reference_steps: Number of steps of each text under the tokenizer to compare with.
    Raises:
        ValueError: If the counts do not match the texts, there is no text, or a text has bytes but no step.
    Source: Liu et al. (dynamic vocabulary), tables 3 and 15. The product of its two columns is bytes per text. It
        differs by 3% between rows for the same texts, which cannot happen if bytes are summed before the division.
    Related: `normalized_sequence_length` is the ratio of Dagan et al.

    >>> measure_compression(["to be or not"], [3], [4])
    Compression(num_texts=1, steps_per_text=3.0, bytes_per_step=4.0, mean_bytes_per_step=4.0, relative_length=0.75)
    """
    if isinstance(texts, str):
        raise ValueError("texts must be a list of strings, got one string; put it into a list")
    _check_counts(num_steps, len(texts))
    sizes = [len(text.encode("utf-8", "surrogatepass")) for text in texts]
    pairs = [(size, steps) for size, steps in zip(sizes, num_steps, strict=True) if size or steps]
    for index, (size, steps) in enumerate(zip(sizes, num_steps, strict=True)):
        if size and not steps:
            raise ValueError(
                f"a text that is not empty must have a step, text {index} has {size} bytes and 0 steps; count its steps"
            )
    if not pairs:
        raise ValueError(f"at least one text must have a step, got {len(texts)} texts without steps; generate more")
    return Compression(
        num_texts=len(texts),
        steps_per_text=fmean(num_steps),
        bytes_per_step=sum(sizes) / sum(num_steps),
        mean_bytes_per_step=fmean(size / steps for size, steps in pairs),
        relative_length=None if reference_steps is None else normalized_sequence_length(num_steps, reference_steps),
    )


def normalized_sequence_length(num_steps: Sequence[int], reference_steps: Sequence[int]) -> float:
    """Return the total length of texts in one segmentation over that in another; below 1, the first is shorter.

    Args:
        num_steps: Number of steps of each text.
        reference_steps: Number of steps of each text under the reference tokenizer.
    Raises:
        ValueError: If the two lists differ in length, or one of them has no step.
    Source: Dagan et al. 2024, normalized sequence length of a tokenizer against a reference, which sums both lengths
        over all examples before the division. The dynamic vocabulary paper uses this name for the mean length.

    >>> normalized_sequence_length([3, 1], [4, 4])
    0.5
    """
    _check_counts(num_steps, len(reference_steps))
    _check_counts(reference_steps, len(num_steps))
    if sum(reference_steps) == 0 or sum(num_steps) == 0:
        raise ValueError(
            "texts must have at least one step in both segmentations, got "
            f"{sum(num_steps)} and {sum(reference_steps)}; give texts that are not empty"
        )
    return sum(num_steps) / sum(reference_steps)


def _check_counts(num_steps: Sequence[int], num_texts: int) -> None:
    if len(num_steps) != num_texts:
        raise ValueError(f"each text needs one number of steps, got {len(num_steps)} numbers for {num_texts} texts")
    if any(steps < 0 for steps in num_steps):
        raise ValueError(f"a number of steps must be 0 or more, got {min(num_steps)}")
