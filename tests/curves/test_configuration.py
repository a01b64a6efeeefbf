import pytest
import torch

from hf_targets.curves.configuration import CurveConfig
from hf_targets.curves.sentence_curve import SentenceCurve
from hf_targets.maths.bsplines import basis_matrix


def test_the_numbers_follow_the_papers_rule():
    config = CurveConfig(num_control_points_ratio=2.5, degree_ratio=0.1)
    for length in range(2, 251):
        count = int(length * 2.5)
        assert config.num_control_points_for(length) == count
        assert config.degree_for(length) == max(int(count * 0.1), 2)


def test_fixed_numbers_go_over_ratios():
    config = CurveConfig(num_control_points=18, degree=6, num_control_points_ratio=3.0, degree_ratio=0.5)
    assert {(config.num_control_points_for(length), config.degree_for(length)) for length in (1, 3, 18)} == {(18, 6)}
    assert CurveConfig(degree=5).degree_for(100) == 5
    assert CurveConfig(num_control_points=40).degree_for(3) == 4


@pytest.mark.parametrize(
    ("fields", "length", "expected"),
    [
        ({}, 1, (2, 1)),
        ({}, 2, (4, 2)),
        ({"num_control_points_ratio": 1.0}, 1, (1, 0)),
        ({"num_control_points_ratio": 3.0, "degree": 5}, 1, (3, 2)),
        ({"num_control_points_ratio": 0.2, "rank_deficient": "pseudo_inverse"}, 3, (1, 0)),
        ({"num_control_points": 2}, 2, (2, 1)),
    ],
)
def test_a_short_text_has_the_highest_degree_that_its_control_points_allow(fields, length, expected):
    config = CurveConfig(**fields)
    assert (config.num_control_points_for(length), config.degree_for(length)) == expected


@pytest.mark.parametrize(("convention", "more"), [("degree", 1), ("order", 0)])
@pytest.mark.parametrize("fields", [{"degree": 2}, {"degree": 5}, {"degree_ratio": 0.2}, {}])
def test_eta_counts_the_control_points_that_shape_a_point_or_one_less(convention, more, fields):
    config = CurveConfig(degree_convention=convention, **fields)
    for length in (8, 18, 40):  # of an odd one the middle point may be on a knot, where one weight is 0
        count = config.num_control_points_for(length)
        eta = config.degree or max(int(count * config.degree_ratio), 2)
        basis = basis_matrix(length, count, config.degree_for(length), config.margin)
        assert ((basis > 0).sum(dim=0) == eta + more).all()
        torch.testing.assert_close(basis.sum(dim=0), torch.ones(length, dtype=torch.float64))
        tokens, curve = torch.randn(2, length, 3, dtype=torch.float64), SentenceCurve(config)
        torch.testing.assert_close(curve.to_embeddings(curve.to_control_points(tokens), length), tokens)


@pytest.mark.parametrize(("convention", "expected"), [("degree", [1, 2, 4]), ("order", [1, 2, 3])])
def test_a_short_text_has_the_highest_degree_under_both_conventions(convention, expected):
    config = CurveConfig(num_control_points_ratio=1.0, degree=4, degree_convention=convention)
    assert [config.degree_for(length) for length in (2, 3, 9)] == expected
    assert CurveConfig(num_control_points=5, degree=5, degree_convention="order").degree_for(3) == 4


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"num_control_points_ratio": 0.2}, "rank_deficient"),
        ({"num_control_points_ratio": float("nan")}, "num_control_points_ratio"),
        ({"degree_ratio": 1.0}, "degree_ratio"),
        ({"margin": 0.5}, "margin"),
        ({"num_control_points": 5, "degree": 5}, "at least 6 control points"),
        ({"num_control_points": 0}, "num_control_points"),
        ({"degree": 2.5}, "degree"),
        ({"degree": 1, "degree_convention": "order"}, "at least 2"),
        ({"num_control_points": 4, "degree": 5, "degree_convention": "order"}, "at least 5 control points"),
        ({"num_curve_layers": 2}, "hidden"),
        ({"place": "output"}, "place"),
    ],
)
def test_what_cannot_be_is_told_when_it_is_configured(fields, word):
    with pytest.raises(ValueError, match=word):
        CurveConfig(**fields)


def test_fewer_control_points_than_tokens_can_be_chosen():
    config = CurveConfig(num_control_points_ratio=0.2, rank_deficient="pseudo_inverse")
    assert (config.num_control_points_for(128), config.degree_for(128)) == (25, 2)
    CurveConfig(num_control_points_ratio=0.2, num_control_points=300)  # which the ratio does not change
