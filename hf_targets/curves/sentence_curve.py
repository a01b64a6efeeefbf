"""The mapping between embeddings and control points of a sentence curve, with a cache of the matrices it needs."""

from typing import Any

import torch
from torch import Tensor, nn

from hf_targets.curves.configuration import CurveConfig
from hf_targets.maths.torch_modes import break_graph, compiled_constant, without_autocast

MAX_TABLE_LENGTH = 256
"""The longest length in the table of matrices, from which batches of many lengths are looked up on the device."""

_STEP = 32
_MOST_KEPT = 256
"""Lengths of which a curve keeps matrices beside its table."""

Matrices = tuple[Tensor, Tensor]
"""B^+ and B, transposed: one maps embeddings to control points, (..., N, length), the other back, (..., length, N)."""


class SentenceCurve(nn.Module):
    """The two mappings between embeddings E and control points P of a text: P = E B^+ and E = P B.

    Tensors hold tokens as rows, so both mappings are matrix products along the text, the same for every dimension. They
    are computed in float32 (float64 for float64), also inside autocast, because B^+ can have a norm of hundreds; the
    result has the type of the input. TF32 is used if you switch it on: leave it off for long texts.

    The module has no parameters and no buffers. Matrices are computed when a length first occurs, and kept.

    With a fixed width, `torch.compile` makes one graph; if the width changes, the graph breaks at the matrix look-up.

    Source: Heo and Choi, "Sentence Curve Language Models", sections 4.1 and 4.2.
    """

    def __init__(self, config: CurveConfig) -> None:
        super().__init__()
        self.config = config
        self._kept: dict[tuple[int, torch.dtype, torch.device], Matrices] = {}  # the oldest first
        self._tables: dict[tuple[torch.dtype, torch.device], Matrices] = {}
        self._numbers: dict[torch.device, Tensor] = {}  # of control points, by length
        self._lacking: set[int] = set()  # lengths in the table that have no curve
        self._longest = 0  # the longest text for which the norm of the inverse was checked

    def __getstate__(self) -> dict[str, Any]:
        """Leave the matrices out of copies and pickles: they are made again."""
        return {**super().__getstate__(), "_kept": {}, "_tables": {}, "_numbers": {}, "_lacking": set(), "_longest": 0}

    def num_control_points(self, length: int) -> int:
        """Return N, the number of control points of a text of `length` tokens."""
        return self.config.num_control_points_for(length)

    def to_control_points(self, embeddings: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the control points E B^+ of least norm, (batch, N(length), dim), of embeddings (batch, length, dim).

        Args:
            lengths: (batch,): row r has tokens at positions 0 to lengths[r] - 1, and padding after them; None: no
                padding. Padding does not change the result: a row has the same control points as without padding,
                followed by zeros.
        Raises:
            ValueError: If `lengths` does not fit the batch, or a curve cannot represent a text of that length. Where
                lengths cannot be read, on a device or in compiled code, such a text becomes NaN.
        """
        return self._map(0, embeddings, embeddings.shape[1], lengths)

    def to_embeddings(self, control_points: Tensor, length: int, lengths: Tensor | None = None) -> Tensor:
        """Return the embeddings P B, (batch, length, dim), of control points (batch, N(length), dim).

        Args:
            length: Length of the longest text, or the width of the padded batch.
            lengths: As in `to_control_points`.
        Raises:
            ValueError: If the number of control points is not N(length), or as in `to_control_points`.
        """
        if control_points.shape[1] != self.num_control_points(length):
            raise ValueError(
                f"texts of {length} tokens have {self.num_control_points(length)} control points, got "
                f"{control_points.shape[1]}; give the width of the embeddings that they were made from"
            )
        return self._map(1, control_points, length, lengths)

    def check(self, length: int) -> None:
        """Raise a ValueError if a curve cannot represent texts of `length` tokens."""
        self._compute(length)

    def keep(self, lengths: Tensor, length: int) -> Tensor:
        """Return an attention mask of control points, bool (batch, N(length)): true for those that belong to a text.

        Args:
            lengths: (batch,), as in `to_control_points`.
            length: The width of the padded batch.
        """
        _check(lengths, len(lengths), length)
        positions = torch.arange(self.num_control_points(length), device=lengths.device)
        return positions < self._counts(length, lengths.device)[0].index_select(0, lengths)[:, None]

    def _map(self, direction: int, rows: Tensor, length: int, lengths: Tensor | None) -> Tensor:
        if rows.dim() != 3:
            raise ValueError(f"a curve takes a batch, (batch, length, dim), got shape {tuple(rows.shape)}")
        wide, device = torch.promote_types(rows.dtype, torch.float32), rows.device
        if lengths is None:
            return _product(self._matrices(length, wide, device)[direction], rows)
        _check(lengths, len(rows), length)
        if length > MAX_TABLE_LENGTH:
            return self._map_groups(direction, rows, lengths, length)
        real = self.keep(lengths, length) if direction else torch.arange(length, device=device) < lengths[:, None]
        rows = rows.masked_fill(~real[..., None], 0.0)  # not `* real`: nan * 0 is nan
        matrices = self._table(length, wide, device)[direction].index_select(0, lengths)
        if _is_readable(lengths):  # where it is not, texts that have no curve become NaN
            for missing in sorted(self._lacking.intersection(lengths.tolist())):
                self._compute(missing)  # raises the error that says why
        return _product(matrices, rows)

    @break_graph
    def _map_groups(self, direction: int, rows: Tensor, lengths: Tensor, width: int) -> Tensor:
        """Return each row mapped by the matrix of its length, those of one length at once; waits for the device.

        Args:
            direction: 0 for to_control_points, 1 for to_embeddings.
            rows: (batch, width or N(width), dim).
            width: The width of the padded batch.
        """
        wide = torch.promote_types(rows.dtype, torch.float32)
        full = width if direction else self.num_control_points(width)
        mapped = [rows.new_zeros(full, rows.shape[2])] * len(rows)
        for length in lengths.unique().flip(0).tolist():  # the longest first, so that a warning comes once
            if length:
                matrix = self._matrices(length, wide, rows.device)[direction]
                group = (lengths == length).nonzero()[:, 0]
                product = _product(matrix, rows[:, : matrix.shape[1]].index_select(0, group))
                padded = nn.functional.pad(product, (0, 0, 0, full - matrix.shape[0]))
                for position, row in zip(group.tolist(), padded, strict=True):
                    mapped[position] = row
        return torch.stack(mapped) if mapped else rows.new_zeros(0, full, rows.shape[2])

    @compiled_constant
    def _counts(self, width: int, device: torch.device) -> tuple[Tensor]:
        """Return the numbers of control points of texts of 0 to `width` tokens; 0 tokens have 0."""
        kept = self._numbers.get(device)
        if kept is None or len(kept) <= width:
            counts = [0, *(self.num_control_points(length) for length in range(1, -(-width // _STEP) * _STEP + 1))]
            with torch.inference_mode(False):  # else training could not use tensors made in generation
                kept = torch.tensor(counts, device="cpu").to(device)
            if type(kept) is Tensor:  # not the fake one of a tracer
                self._numbers[device] = kept
        return (kept[: width + 1],)

    @compiled_constant
    def _matrices(self, length: int, dtype: torch.dtype, device: torch.device) -> Matrices:
        """Return both matrices of a length, kept."""
        key = (length, dtype, device)
        if (kept := self._kept.get(key)) is not None:
            return kept
        with torch.inference_mode(False):
            first, second = (_rounded(matrix, dtype).to(device) for matrix in self._compute(length, may_warn=True))
        if type(first) is Tensor:  # not the fake one of a tracer
            self._kept[key] = first, second
            for oldest in list(self._kept)[:-_MOST_KEPT]:
                self._kept.pop(oldest, None)
        return first, second

    @compiled_constant
    def _table(self, width: int, dtype: torch.dtype, device: torch.device) -> Matrices:
        """Return both matrices for each length from 0 to `width`, padded with zeros to the size of those of `width`."""
        table = self._tables.get((dtype, device))
        if width in self._lacking:
            self._compute(width)  # raises the error that says why
        if table is None or len(table[0]) <= width:
            with torch.inference_mode(False):
                table = self._grown_table(table, width, dtype, device)
            if type(table[0]) is Tensor:
                self._tables[dtype, device] = table
        count = self.num_control_points(width)
        return table[0][: width + 1, :count, :width], table[1][: width + 1, :width, :count]

    def _grown_table(self, old: Matrices | None, width: int, dtype: torch.dtype, device: torch.device) -> Matrices:
        """Return a table of lengths up to a multiple of 32; the matrices of lengths that no curve has are NaN."""
        start, top = 1 if old is None else len(old[0]), -(-width // _STEP) * _STEP
        count = self.num_control_points(top)
        shapes = (top + 1, count, top), (top + 1, top, count)
        tables = [torch.zeros(shape, dtype=dtype, device="cpu") for shape in shapes]
        for table, before in zip(tables, old or (), strict=False):
            table[:start, : before.shape[1], : before.shape[2]] = before
        self._compute(width, may_warn=True)  # raises an error if texts of this length have no curve
        for length in range(start, top + 1):
            try:
                matrices = self._compute(length)
            except ValueError:  # whoever has a text of this length is told why
                self._lacking.add(length)
                tables[0][length] = tables[1][length] = torch.nan
                continue
            for table, matrix in zip(tables, matrices, strict=True):
                table[length, : matrix.shape[0], : matrix.shape[1]] = _rounded(matrix, dtype)
        return tables[0].to(device), tables[1].to(device)

    def _compute(self, length: int, *, may_warn: bool = False) -> Matrices:
        """Compute both matrices of a length, in float64 on the CPU.

        Args:
            may_warn: Whether to warn of a large inverse, if this is the longest text so far, as norms grow with it.
        """
        from hf_targets.maths.bsplines import basis_matrix, inverse_matrix  # scipy takes a while to import

        setting = (length, self.num_control_points(length), self.config.degree_for(length), float(self.config.margin))
        options = {"max_norm": None}
        if may_warn and length > self._longest:
            self._longest, options = length, {}
        inverse = inverse_matrix(*setting, rank_deficient=self.config.rank_deficient, **options)
        return inverse.T, basis_matrix(*setting).T


def _rounded(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a matrix in another type; subnormal numbers, which make products several times as slow, become 0."""
    matrix = matrix.to(dtype)
    return matrix.masked_fill(matrix.abs() < torch.finfo(dtype).tiny, 0.0).contiguous()


def _product(matrices: Tensor, rows: Tensor) -> Tensor:
    """Return matrices @ rows, computed in float32 at least and without autocast."""
    with without_autocast(rows.device):
        return (matrices @ rows.to(matrices.dtype)).to(rows.dtype)


def _is_readable(lengths: Tensor) -> bool:
    """Return whether reading the values neither waits for a device nor fails in a tracer."""
    return type(lengths) is Tensor and lengths.is_cpu and not torch.compiler.is_compiling()


def _check(lengths: Tensor, batch: int, length: int) -> None:
    if lengths.shape != (batch,) or lengths.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"lengths must be ({batch},) integers, one a row, got {lengths.dtype} {tuple(lengths.shape)}")
    if batch and _is_readable(lengths):
        least, most = int(lengths.min()), int(lengths.max())
        if not 0 <= least <= most <= length:
            raise ValueError(f"lengths must be in [0, {length}], the width of the batch, got {least} to {most}")
