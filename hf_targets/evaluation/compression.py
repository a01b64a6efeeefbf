"""How much text a step brings: steps a text, against another tokenizer, and UTF-8 bytes a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class Compression:
    """What a segmentation of texts into steps makes of them.

    Attributes:
        num_texts: Measured.
        steps_per_text: Mean number of steps of a text: what the paper calls normalized sequence length.
        bytes_per_step: UTF-8 bytes of all texts over steps of all texts.
        mean_bytes_per_step: Mean over the texts of their own bytes a step, which weighs short texts as much as long.
        relative_length: Steps over the reference segmentation's; None without a reference.
    """

    num_texts: int
    steps_per_text: float
    bytes_per_step: float
    mean_bytes_per_step: float
    relative_length: float | None


def measure_compression(
    texts: Sequence[str], num_steps: Sequence[int], reference_steps: Sequence[int] | None = None
) -> Compression:
    """Return how well steps compress texts, a phrase or a token being one step.

    Args:
        texts: What was generated, without the prefix unless its steps count too.
        num_steps: Of each text, such as the length of its generated row of tokens and phrases.
        reference_steps: Of the same texts under the tokenizer to compare with.
    Raises:
        ValueError: If counts do not go with texts, there is no text, or one has text but no step.
    Source: Liu et al. (dynamic vocabulary), tables 3 and 15. The products of its columns, bytes a text, differ by 3%
        between rows said to be of the same texts, which bytes summed before they are divided cannot.
    Related: `normalized_sequence_length` is Dagan et al.'s ratio.

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
            raise ValueError(f"text {index} has {size} bytes, which no step brought; count its steps")
    if not pairs:
        raise ValueError(f"at least one text must have a step, got {len(texts)} texts without")
    return Compression(
        num_texts=len(texts),
        steps_per_text=fmean(num_steps),
        bytes_per_step=sum(sizes) / sum(num_steps),
        mean_bytes_per_step=fmean(size / steps for size, steps in pairs),
        relative_length=None if reference_steps is None else normalized_sequence_length(num_steps, reference_steps),
    )


def normalized_sequence_length(num_steps: Sequence[int], reference_steps: Sequence[int]) -> float:
    """Return the summed length of texts in one segmentation over that in another: below 1 is shorter.

    Args:
        num_steps: Of each text.
        reference_steps: Of the same texts under the reference tokenizer.
    Raises:
        ValueError: If the texts are not the same in number, or have no step in either.
    Source: Dagan et al. 2024, normalized sequence length of a tokenizer against a reference: both lengths summed over
        all examples before they are divided. The dynamic vocabulary paper gives this name to the plain mean length.

    >>> normalized_sequence_length([3, 1], [4, 4])
    0.5
    """
    _check_counts(num_steps, len(reference_steps))
    _check_counts(reference_steps, len(num_steps))
    if sum(reference_steps) == 0 or sum(num_steps) == 0:
        raise ValueError("a ratio of lengths takes texts with at least one step in both segmentations, got none")
    return sum(num_steps) / sum(reference_steps)


def _check_counts(num_steps: Sequence[int], num_texts: int) -> None:
    if len(num_steps) != num_texts:
        raise ValueError(f"each text has one number of steps, got {len(num_steps)} numbers for {num_texts} texts")
    if any(steps < 0 for steps in num_steps):
        raise ValueError(f"a number of steps cannot be below 0, got {min(num_steps)}")
