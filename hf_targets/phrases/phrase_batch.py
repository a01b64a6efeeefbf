"""What a training batch has beside its text in tokens: the same text with phrases, and the phrases themselves."""

from dataclasses import dataclass, fields
from typing import Any, Self

from torch import Tensor

from hf_targets.backbones.inputs import check_integers, check_range
from hf_targets.maths.losses import IGNORED


@dataclass(frozen=True)
class PhraseBatch:
    """The columns of `PhraseCollator` from `phrase_input_ids` on, by their names there.

    Attributes:
        phrase_input_ids: (batch, positions), the same text with phrases V + p of the batch's own table.
        phrase_targets: (batch, positions), unshifted as labels are.
        token_positions: (batch, positions), where in `input_ids` the last token of each position stands.
        windows: (windows, length), token ids to encode.
        phrase_windows: (phrases, 2), window and number of tokens of each phrase p.
        phrase_attention_mask: (batch, positions), 0 at padding.
        phrase_mask: (batch, phrases), which of them are in a row's vocabulary.
        masked_phrases: (k, 3), row, position and phrase of those that are a right continuation there, too.
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
        """Take the fields out of the arguments of a call; None if there is none.

        Raises:
            ValueError: If one is there and another that it needs is not.
        """
        names = [field.name for field in fields(cls)]
        given = {name: arguments.pop(name, None) for name in names}
        if all(value is None for value in given.values()):
            return None
        if missing := [name for name in names[:5] if given[name] is None]:
            raise ValueError(
                f"a batch with phrases needs {', '.join(names[:5])}, and lacks {', '.join(missing)}; PhraseCollator "
                "makes them all"
            )
        return cls(**given)

    def check(self, vocab_size: int, time: int) -> None:
        """Check that everything points to phrases and tokens that there are.

        Args:
            vocab_size: V, where the ids of phrases begin.
            time: Positions of the text in tokens.
        Raises:
            ValueError: If something does not, or has another shape than the text with phrases.
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


def _check_shape(name: str, tensor: Tensor | None, shape: tuple[int, ...], what: str) -> None:
    if tensor is not None and tensor.shape != shape:
        raise ValueError(f"{name} must have the shape of {what}, {tuple(shape)}, got {tuple(tensor.shape)}")
