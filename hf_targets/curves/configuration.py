"""The configuration of a sentence curve: the number of control points of a text, and the degree of the curve."""

import copy
import math
from dataclasses import field
from typing import Any, Literal

from transformers.configuration_utils import PreTrainedConfig

from hf_targets.backbones.configuration import check_fields

Place = Literal["input", "hidden"]
DegreeConvention = Literal["degree", "order"]


class CurveConfig(PreTrainedConfig):
    """Configuration of `SentenceCurve`, which is part of the configuration of a model that predicts curves.

    A text of L tokens has N = trunc(L * num_control_points_ratio) control points. By default the curve has degree
    max(trunc(N * degree_ratio), 2). The defaults are those of table 6; table 3 lists the best for each data set.

    Table 3 gives N_ratio = 0.2 for LM1B, which contradicts the condition N > L in the text: B^T B is singular. With the
    pseudo-inverse, a text of 128 tokens keeps 25 of its 128 directions, and mapping unit noise to control points and
    back loses 80 % of it (`hf_targets.curves.reconstruction`).

    The paper allows two readings of eta; `degree_convention` chooses one:

    - "degree": the degree of the basis (sections 4.1 and 5.2), so that a point depends on eta + 1 control points.
    - "order": the control points that a point depends on (figure 3, appendix C.2); the degree is eta - 1.

    A higher degree gives larger control points, and larger errors. With the defaults, an error of the embeddings grows
    up to 30 times in the control points of 128 tokens, 904 times for 250 tokens, and a million times for 512; from
    about 930 tokens on there is no inverse. For long texts choose a degree_ratio of 0.01, or a fixed degree.

    Raises:
        ValueError: If a field is outside the range in its help text, if a fixed number of control points is too small
            for a fixed degree, or if there are fewer control points than tokens and `rank_deficient` is None.
    Source: Heo and Choi, "Sentence Curve Language Models", section 5.2.
    """

    model_type = "sentence_curve"

    num_control_points_ratio: float = field(
        default=2.0,
        metadata={
            "help": "N_ratio, control points per token; above 0. Below 1 a curve cannot represent all of a text: the "
            "inverse B^+ = (B^T B)^-1 B^T does not exist, and rank_deficient must be set."
        },
    )
    num_control_points: int | None = field(
        default=None, metadata={"help": "N, fixed for texts of all lengths; None: by num_control_points_ratio."}
    )
    degree_ratio: float = field(
        default=0.1, metadata={"help": "Eta_ratio, the degree divided by the number of control points; in [0, 1)."}
    )
    degree: int | None = field(
        default=None, metadata={"help": "Eta, fixed for texts of all lengths, 1 or more; None: by degree_ratio."}
    )
    degree_convention: DegreeConvention = field(
        default="degree",
        metadata={
            "help": 'Meaning of eta: "degree", the degree of the basis; "order", the number of control points that a '
            "point of the curve depends on, one more than the degree."
        },
    )
    num_curves: int = field(
        default=1,
        metadata={"help": "K, the number of predicted curves, which a scorer weighs; 1 or more. 1: no scorer."},
    )
    margin: float = field(
        default=0.01, metadata={"help": "Share of the curve before the first and after the last token; in [0, 0.5)."}
    )
    rank_deficient: Literal["pseudo_inverse"] | None = field(
        default=None,
        metadata={
            "help": 'What to do if B^T B is singular: None, raise an error; "pseudo_inverse", take the nearest curve, '
            "which loses a part of the text."
        },
    )
    place: Place = field(
        default="input",
        metadata={
            "help": 'Where embeddings become control points: "input", before the first layer, as in the paper; '
            '"hidden", before the last num_curve_layers, which is cheaper.'
        },
    )
    num_curve_layers: int | None = field(
        default=None,
        metadata={"help": 'With place="hidden", how many last layers run on control points, 1 or more; None: 1.'},
    )

    def __post_init__(self, **kwargs) -> None:
        check_fields(self)
        for name in ("num_control_points", "degree", "num_curves", "num_curve_layers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be 1 or more, got {value}")
        if self.degree == 1 and self.degree_convention == "order":
            raise ValueError('degree must be at least 2 with degree_convention="order" (appendix C.2), got 1')
        if not 0 < self.num_control_points_ratio < math.inf:
            raise ValueError(f"num_control_points_ratio must be finite, above 0, got {self.num_control_points_ratio}")
        for name, limit in (("degree_ratio", 1), ("margin", 0.5)):
            if not 0 <= getattr(self, name) < limit:
                raise ValueError(f"{name} must be in [0, {limit}), got {getattr(self, name)}")
        if self.num_curve_layers is not None and self.place != "hidden":
            raise ValueError(f'num_curve_layers={self.num_curve_layers} needs place="hidden", got {self.place!r}')
        count = self.num_control_points
        if count is not None and self.degree is not None and count <= (degree := self._degree_of(self.degree)):
            raise ValueError(f"a degree-{degree} curve needs at least {degree + 1} control points, got {count}")
        if self.num_control_points is None and self.num_control_points_ratio < 1 and self.rank_deficient is None:
            raise ValueError(
                f"num_control_points_ratio={self.num_control_points_ratio} gives a text fewer control points than "
                'tokens, so that the curve loses a part of it; raise it to 2, or choose rank_deficient="pseudo_inverse"'
            )
        super().__post_init__(**kwargs)

    def num_control_points_for(self, length: int) -> int:
        """Return N for a text of `length` tokens, at least 1."""
        if self.num_control_points is not None:
            return self.num_control_points
        # Departs: with N_ratio below 1 the paper's rule gives a short text no control point; ours gives it one
        return max(math.trunc(length * self.num_control_points_ratio), 1)

    def degree_for(self, length: int) -> int:
        """Return the degree of the basis for a text of `length` tokens, below N."""
        count = self.num_control_points_for(length)
        eta = max(math.trunc(count * self.degree_ratio), 2) if self.degree is None else self.degree
        # Departs: the paper's rule gives no curve if N is at most the degree; ours takes the highest possible degree
        return min(self._degree_of(eta), count - 1)

    def _degree_of(self, eta: int) -> int:
        return eta if self.degree_convention == "degree" else eta - 1


def as_curve_config(curve: dict[str, Any] | CurveConfig | None) -> CurveConfig | None:
    """Return the configuration of a curve, from a `CurveConfig` or a dictionary of its fields; None for None.

    Raises:
        ValueError: If `curve` has a field that a curve does not have.
    """
    if curve is None or isinstance(curve, CurveConfig):
        return copy.deepcopy(curve)  # what is changed later is no field of a model that was made before
    if unknown := curve.keys() - CurveConfig.__dataclass_fields__.keys() - {"model_type", "transformers_version"}:
        known = ", ".join(CurveConfig.__annotations__)
        raise ValueError(f"a curve has no such field: {', '.join(sorted(unknown))}; there are {known}")
    return CurveConfig.from_dict(curve)


def curve_fields(values: dict[str, Any]) -> dict[str, Any]:
    """Return a model's fields, those of its `curve` without what Transformers adds, which has no meaning there."""
    if not isinstance(values["curve"], dict):
        return values
    own = {"model_type", *CurveConfig.__annotations__}
    return {**values, "curve": {name: value for name, value in values["curve"].items() if name in own}}
