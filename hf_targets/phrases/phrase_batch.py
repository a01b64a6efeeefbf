"""The columns of a training batch for the text with phrases and for the phrases, beside the text in tokens."""

from dataclasses import dataclass, fields
from typing import Any, Self

from torch import Tensor

from hf_targets.backbones.inputs import check_integers, check_range
from hf_targets.maths.losses import IGNORED


@dataclass(frozen=True)
class PhraseBatch:
    """The columns of a `PhraseCollator` batch from `phrase_input_ids` on, with the same names.

    Attributes:
        phrase_input_ids: (batch, positions), the text with phrases; id V + p is phrase p of the batch's own table.
        phrase_targets: (batch, positions), unshifted like labels.
        token_positions: (batch, positions), the index in `input_ids` of the last token of each position.
        windows: (windows, length), token ids to encode.
        phrase_windows: (phrases, 2), for each phrase the index of its window and its number of tokens.
        phrase_attention_mask: (batch, positions), 0 at padding.
        phrase_mask: (batch, phrases), true where the phrase is in the row's table.
        masked_phrases: (k, 3), row, position and phrase: the text after that position begins with the phrase, so that
            the phrase is not a negative there.
    """

    phrase_input_ids: Tensor
    phrase_targets: Tensor
    token_positions: Tensor
    windows: Tensor
    phrase_windows: Tensor
    phrase_attention_mask: Tensor | None = None
    phrase_mask: Tensor | None = None
    masked_phrases: Tensor | None = None

    @classmethod
    def taken_from(cls, arguments: dict[str, Any]) -> Self | None:
        """Remove the fields from the arguments of a call and return them; None if the arguments have no such field.

        Raises:
            ValueError: If some fields are given and a required one is missing.
        """
        given = {name: arguments.pop(name, None) for name in _NAMES}
        if all(value is None for value in given.values()):
            return None
        if missing := [name for name in _NAMES[:5] if given[name] is None]:
            raise ValueError(
                f"a batch with phrases needs {', '.join(_NAMES[:5])}, got none for {', '.join(missing)}; make the "
                "batch with PhraseCollator"
            )
        return cls(**given)

    def check(self, vocab_size: int, time: int) -> None:
        """Check that the shapes of the fields agree, and that all ids and indices are in range.

        The phrase encoder checks `phrase_windows`.

        Args:
            vocab_size: V, the id of the first phrase.
            time: The number of positions of the text in tokens.
        Raises:
            ValueError: If a field has a wrong shape, or an id or index is out of range.
        """
        ids, targets, num_phrases = self.phrase_input_ids, self.phrase_targets, len(self.phrase_windows)
        for name in ("phrase_attention_mask", "phrase_targets", "token_positions"):
            _check_shape(name, getattr(self, name), ids.shape, "phrase_input_ids")
        check_integers(phrase_input_ids=ids, phrase_targets=targets, token_positions=self.token_positions)
        check_range(ids, vocab_size + num_phrases, "phrase_input_ids must be")
        check_range(targets.masked_fill(targets == IGNORED, 0), vocab_size + num_phrases, "phrase_targets must be")
        check_range(self.token_positions, time, "token_positions must be")
        check_range(self.windows, vocab_size, "windows must be")
        _check_shape("phrase_mask", self.phrase_mask, (len(ids), num_phrases), "(batch, phrases)")
        if self.masked_phrases is not None:
            _check_shape("masked_phrases", self.masked_phrases, (len(self.masked_phrases), 3), "(k, 3)")
            stops = {"rows": ids.shape[0], "positions": ids.shape[1], "phrases": num_phrases}
            for column, (what, stop) in zip(self.masked_phrases.T, stops.items(), strict=True):
                check_range(column, stop, f"masked_phrases must have {what}")


_NAMES = tuple(field.name for field in fields(PhraseBatch))  # asked for once: torch.compile cannot


def _check_shape(name: str, tensor: Tensor | None, shape: tuple[int, ...], what: str) -> None:
    if tensor is not None and tensor.shape != shape:
        raise ValueError(f"{name} must have the shape of {what}, {tuple(shape)}, got {tuple(tensor.shape)}")
