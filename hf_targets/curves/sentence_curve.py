"""The mapping between embeddings and control points of a sentence curve, with a cache of the matrices it needs."""

import torch
from torch import Tensor, nn

from hf_targets.curves.configuration import CurveConfig
from hf_targets.maths.torch_modes import break_graph, compiled_constant, without_autocast

MAX_TABLE_LENGTH = 256
"""The longest length in the table of matrices, from which batches of many lengths are looked up on the device."""

_STEP = 32
_MAX_BYTES = 2**30

Matrices = tuple[Tensor, Tensor]
"""B^+ and B, transposed: one maps embeddings to control points, (..., N, length), the other back, (..., length, N)."""


class SentenceCurve(nn.Module):
    """The two mappings between embeddings E and control points P of a text: P = E B^+ and E = P B.

    Tensors hold tokens as rows, so both mappings are matrix products along the text, the same for every dimension. They
    are computed in float32 (float64 for float64), also inside autocast, because B^+ can have a norm of hundreds; the
    result has the type of the input. TF32 is used if you switch it on: leave it off for long texts.

    The module has no parameters and no buffers. Matrices are computed when a length first occurs, and cached for all
    models of the process; beyond 1 GiB the oldest are dropped. The matrices of all lengths up to 256 take
    258 MiB in float32 with the defaults.

    With a fixed width, `torch.compile` makes one graph; if the width changes, the graph breaks at the matrix look-up.

    Source: Heo and Choi, "Sentence Curve Language Models", sections 4.1 and 4.2.
    """

    def __init__(self, config: CurveConfig) -> None:
        super().__init__()
        self.config = config

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
        """Check that a curve can represent texts of `length` tokens.

        Raises:
            ValueError: If it cannot.
        """
        _compute(self.config, length, warn=False)

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
            return _map_groups(self.config, direction, rows, lengths, length)
        real = self.keep(lengths, length) if direction else torch.arange(length, device=device) < lengths[:, None]
        rows = rows.masked_fill(~real[..., None], 0.0)  # not `* real`: nan * 0 is nan
        matrices = self._table(length, wide, device)[direction].index_select(0, lengths)
        _check_exist(self.config, lengths)
        return _product(matrices, rows)

    @compiled_constant
    def _matrices(self, length: int, dtype: torch.dtype, device: torch.device) -> Matrices:
        return _matrices(self.config, length, dtype, device)

    @compiled_constant
    def _table(self, width: int, dtype: torch.dtype, device: torch.device) -> Matrices:
        return _table(self.config, width, dtype, device)

    @compiled_constant
    def _counts(self, width: int, device: torch.device) -> tuple[Tensor]:
        return _counts(self.config, width, device)


_kept: dict[tuple, tuple[Tensor, ...]] = {}
"""Tensors that follow from curves and lengths alone, for all models of the process, the oldest first."""
_longest: dict[tuple, int] = {}  # by curve, the longest text for which the norm of the inverse was checked
_lacking: dict[tuple, set[int]] = {}  # by curve, lengths of which a table has no matrices, as there is no such curve


def _keep(key: tuple, tensors: tuple[Tensor, ...]) -> None:
    """Keep tensors, but for subclasses such as the fake tensors of a tracer, and drop the oldest beyond the limit."""
    if not all(type(tensor) is Tensor for tensor in tensors):
        return
    _kept[key] = tensors
    sizes = {name: sum(tensor.nbytes for tensor in kept) for name, kept in tuple(_kept.items())}
    while sum(sizes.values()) > _MAX_BYTES and len(sizes) > 1:
        oldest = next(iter(sizes))
        _kept.pop(oldest, None)
        del sizes[oldest]


def _key(config: CurveConfig) -> tuple:
    count, degree = config.num_control_points, config.degree
    return (
        count or config.num_control_points_ratio,
        count is None,
        degree or config.degree_ratio,
        degree is None,
        config.degree_convention,
        config.margin,
        config.rank_deficient,
    )


def _compute(config: CurveConfig, length: int, *, warn: bool) -> Matrices:
    """Compute both matrices of a length, in float64 on the CPU."""
    from hf_targets.maths.bsplines import basis_matrix, inverse_matrix  # scipy takes a while to import

    setting = (length, config.num_control_points_for(length), config.degree_for(length), float(config.margin))
    options = {} if warn else {"max_norm": None}
    inverse = inverse_matrix(*setting, rank_deficient=config.rank_deficient, **options)
    return inverse.T, basis_matrix(*setting).T


def _rounded(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a matrix in another type; subnormal numbers, which make products several times as slow, become 0."""
    matrix = matrix.to(dtype)
    return matrix.masked_fill(matrix.abs() < torch.finfo(dtype).tiny, 0.0).contiguous()


def _is_longest(config: CurveConfig, length: int) -> bool:
    """Return whether this is the longest text of a curve so far; only then warn, as norms grow with the length."""
    key = _key(config)
    longest = _longest.get(key, 0)
    _longest[key] = max(longest, length)
    return length > longest


def _matrices(config: CurveConfig, length: int, dtype: torch.dtype, device: torch.device) -> Matrices:
    """Return both matrices of a length, cached."""
    key = (*_key(config), length, dtype, device)
    cached = _kept.get(key)
    if cached is None:
        with torch.inference_mode(False):  # else training could not use tensors made in generation
            computed = _compute(config, length, warn=_is_longest(config, length))
            cached = tuple(_rounded(matrix, dtype).to(device) for matrix in computed)
        _keep(key, cached)
    return cached[0], cached[1]


def _table(config: CurveConfig, width: int, dtype: torch.dtype, device: torch.device) -> Matrices:
    """Return both matrices for each length from 0 to `width`, padded with zeros to the size of those of `width`."""
    key = (*_key(config), "table", dtype, device)
    cached = _kept.get(key)
    if width in _lacking.get(_key(config), ()):
        _compute(config, width, warn=False)  # raises the error that says why
    if cached is None or len(cached[0]) <= width:
        with torch.inference_mode(False):
            cached = _grown_table(config, cached, width, dtype, device)
        _keep(key, cached)
    count = config.num_control_points_for(width)
    return cached[0][: width + 1, :count, :width], cached[1][: width + 1, :width, :count]


def _grown_table(
    config: CurveConfig, old: tuple[Tensor, ...] | None, width: int, dtype: torch.dtype, device: torch.device
) -> Matrices:
    """Return a table of lengths up to a multiple of 32; the matrices of lengths that no curve has are NaN."""
    start, top = 1 if old is None else len(old[0]), -(-width // _STEP) * _STEP
    new: dict[int, Matrices | None] = {width: _compute(config, width, warn=_is_longest(config, width))}
    for length in (length for length in range(start, top + 1) if length != width):
        try:
            new[length] = _compute(config, length, warn=False)
        except ValueError:  # whoever has a text of this length is told why
            new[length] = None
            _lacking.setdefault(_key(config), set()).add(length)
    count = config.num_control_points_for(top)
    shapes = (top + 1, count, top), (top + 1, top, count)
    tables = [torch.zeros(shape, dtype=dtype, device="cpu") for shape in shapes]
    for length, matrices in new.items():
        if matrices is None:
            for table in tables:
                table[length] = torch.nan
            continue
        for table, matrix in zip(tables, matrices, strict=True):
            table[length, : matrix.shape[0], : matrix.shape[1]] = _rounded(matrix, dtype)
    for table, before in zip(tables, old or (), strict=False):
        table[:start, : before.shape[1], : before.shape[2]] = before
    return tables[0].to(device), tables[1].to(device)


def _product(matrices: Tensor, rows: Tensor) -> Tensor:
    """Return matrices @ rows, computed in float32 at least and without autocast."""
    with without_autocast(rows.device):
        return (matrices @ rows.to(matrices.dtype)).to(rows.dtype)


@break_graph
def _map_groups(config: CurveConfig, direction: int, rows: Tensor, lengths: Tensor, width: int) -> Tensor:
    """Return each row mapped by the matrix of its length, multiplying rows of one length at once; waits for the device.

    Args:
        direction: 0 for to_control_points, 1 for to_embeddings.
        rows: (batch, width or N(width), dim).
        width: The width of the padded batch.
    """
    wide = torch.promote_types(rows.dtype, torch.float32)
    full = width if direction else config.num_control_points_for(width)
    mapped = [rows.new_zeros(full, rows.shape[2])] * len(rows)
    for length in lengths.unique().flip(0).tolist():  # the longest first, so that a warning comes once
        if length:
            matrix = _matrices(config, length, wide, rows.device)[direction]
            group = (lengths == length).nonzero()[:, 0]
            product = _product(matrix, rows[:, : matrix.shape[1]].index_select(0, group))
            padded = nn.functional.pad(product, (0, 0, 0, full - matrix.shape[0]))
            for position, row in zip(group.tolist(), padded, strict=True):
                mapped[position] = row
    return torch.stack(mapped) if mapped else rows.new_zeros(0, full, rows.shape[2])


def _counts(config: CurveConfig, width: int, device: torch.device) -> tuple[Tensor]:
    """Return the numbers of control points of texts of 0 to `width` tokens; 0 tokens have 0."""
    key = (*_key(config), "counts", width, device)
    cached = _kept.get(key)
    if cached is None:
        counts = [0, *(config.num_control_points_for(length) for length in range(1, width + 1))]
        with torch.inference_mode(False):
            cached = (torch.tensor(counts, device="cpu").to(device),)
        _keep(key, cached)
    return (cached[0],)


def _check_exist(config: CurveConfig, lengths: Tensor) -> None:
    """Check that each row has a length of which a curve exists; what cannot be looked at becomes NaN."""
    if _is_readable(lengths) and (lacking := _lacking.get(_key(config))):
        for length in sorted(lacking.intersection(lengths.tolist())):
            _compute(config, length, warn=False)  # raises the error that says why


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
