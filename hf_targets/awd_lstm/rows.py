"""The rows of a comparison of AWD-LSTMs: regularised or not, finetuned or not."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from hf_targets.awd_lstm.trainer import AwdLstmTrainer
from hf_targets.training.row_arguments import cosine_weight_of, with_arguments
from hf_targets.training.settings import parse_mapping


@dataclass(frozen=True)
class LstmRow:
    """A model of a comparison.

    Attributes:
        cosine_weight: Gamma; None: that of the arguments.
        finetunes: Name of the row whose trained models this one goes on from; None: it begins with new weights.
    """

    cosine_weight: float | None = None
    finetunes: str | None = None

    def trainer_of(self, finetune_epochs: float) -> Callable[..., AwdLstmTrainer]:
        """Return what makes the row's trainer.

        Args:
            finetune_epochs: Most epochs of a row that finetunes.
        """
        changes: dict[str, Any] = {}
        if self.cosine_weight is not None:
            changes["cosine_weight"] = self.cosine_weight
        if self.finetunes is not None:
            changes |= {"average_from_start": True, "num_train_epochs": finetune_epochs}
        return with_arguments(AwdLstmTrainer, **changes)


def equally_trained(rows: Mapping[str, LstmRow]) -> list[list[str]]:
    """Return the names of rows, grouped by how often they have been finetuned: only these have had the same updates.

    >>> equally_trained(lstm_rows('{"a": {}, "b": {"finetunes": "a"}, "c": {}}'))
    [['a', 'c'], ['b']]
    """
    depths: dict[str, int] = {}
    for name, row in rows.items():
        depths[name] = 0 if row.finetunes is None else depths[row.finetunes] + 1
    return [[name for name in rows if depths[name] == depth] for depth in sorted(set(depths.values()))]


def lstm_rows(text: str) -> dict[str, LstmRow]:
    """Return the rows that a JSON object describes: to each name its `cosine_weight` and `finetunes`.

    Raises:
        ValueError: If it is no such object, a field is unknown or of another type, or a row finetunes one that does not
            stand before it.

    >>> lstm_rows('{"plain": {}, "finetuned": {"finetunes": "plain"}}')["finetuned"].finetunes
    'plain'
    """
    rows: dict[str, LstmRow] = {}
    known = [one.name for one in fields(LstmRow)]
    for name, content in parse_mapping(text, "rows").items():
        if not isinstance(content, dict):
            raise ValueError(f"row {name} must be an object, such as {{}} for a plain model, got {content!r}")
        if unknown := content.keys() - set(known):
            raise ValueError(
                f"row {name} has no such field: {', '.join(sorted(unknown))}; there are {', '.join(known)}"
            )
        row = LstmRow(**{**content, "cosine_weight": cosine_weight_of(name, content)})
        if row.finetunes is not None and row.finetunes not in rows:
            raise ValueError(
                f"finetunes of row {name} must name a row before it, of {', '.join(rows) or 'none'}, got "
                f"{row.finetunes!r}"
            )
        rows[name] = row
    if not rows:
        raise ValueError('rows must name a model, such as {"plain": {}}, got none')
    return rows
