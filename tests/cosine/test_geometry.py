"""Each figure of embeddings against its definition, written out; rows that are given with known geometry."""

import math

import pytest
import torch
from accelerate import cpu_offload
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model

from hf_targets import embedding_geometry
from hf_targets.cosine import geometry as module
from tests.tiny_backbones import make_backbone
from tests.tiny_models import make_model


def rows_of(num_rows, dim, seed, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, dim, generator=generator, dtype=torch.float64) + shift


def scalars(found):
    return {name: value for name, value in vars(found).items() if not isinstance(value, torch.Tensor)}


@given(st.integers(2, 12), st.integers(1, 5), st.floats(0, 3), st.integers(0, 10**6))
def test_every_figure_is_its_definition(num_rows, dim, shift, seed):
    rows = rows_of(num_rows, dim, seed, shift)
    found = embedding_geometry(rows)
    units = rows / rows.norm(dim=1, keepdim=True)
    cosines = torch.stack([units[i] @ units[j] for i in range(num_rows) for j in range(i)])
    assert found.mean_cosine == pytest.approx(cosines.mean().item(), abs=1e-12)
    assert found.share_of_positive_cosines == pytest.approx((cosines > 0).double().mean().item())
    assert found.cosine_counts.sum() == num_rows * (num_rows - 1) // 2
    values = torch.linalg.svdvals(rows)
    torch.testing.assert_close(found.singular_values, values / values[0])
    share = values / values.sum()
    assert found.effective_rank == pytest.approx(math.exp(-sum(p * math.log(p) for p in share.tolist() if p > 0)))
    torch.testing.assert_close(found.norms, rows.norm(dim=1))
    best = torch.linalg.matrix_norm(rows) ** 2 - (values[:2] ** 2).sum()  # of rank 2, by Eckart and Young
    left = rows - found.projection @ found.plane
    torch.testing.assert_close(left.square().sum(), best, rtol=1e-9, atol=1e-9)


def test_isotropy_is_the_ratio_of_partition_functions_of_both_ways_of_the_eigenvectors():
    rows = rows_of(30, 4, 1, 0.5)
    vectors = torch.linalg.eigh(rows.T @ rows).eigenvectors.T
    sums = [torch.exp(rows @ (sign * vector)).sum().item() for vector in vectors for sign in (1, -1)]
    assert embedding_geometry(rows).isotropy == pytest.approx(min(sums) / max(sums))


def test_a_cone_of_known_width():
    angle, turns = math.radians(20), torch.arange(100) * (2 * math.pi / 100)
    ring = torch.stack([torch.cos(turns) * math.sin(angle), torch.sin(turns) * math.sin(angle)], dim=1)
    rows = torch.cat([ring, torch.full((100, 1), math.cos(angle))], dim=1)
    found = embedding_geometry(rows * 7)
    assert found.aperture == pytest.approx(40, abs=1e-4) and found.share_of_positive_cosines == 1
    rows[0] = torch.tensor([0.0, 0.0, -1.0])  # one odd row does not make the cone wide
    assert embedding_geometry(rows).aperture < 42


def test_orthogonal_rows_have_no_positive_cosine():
    turn = torch.linalg.qr(rows_of(10, 10, 4)).Q
    for rows in (torch.eye(10), turn):
        found = embedding_geometry(rows)
        assert found.share_of_positive_cosines == 0 and found.mean_cosine == pytest.approx(0)


def test_opposite_rows_lie_in_all_directions():
    rows = rows_of(50, 6, 2)
    found = embedding_geometry(torch.cat([rows, -rows]))
    assert found.aperture == 360 and found.mean_cosine == pytest.approx(-1 / 99)


def test_rotations_and_the_order_of_rows_change_nothing():
    rows = rows_of(40, 5, 3, 0.4)
    turn = torch.linalg.qr(rows_of(5, 5, 4)).Q
    counts = torch.arange(40)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    one, other = embedding_geometry(rows, counts), embedding_geometry(rows[order] @ turn, counts[order])
    assert scalars(one) == pytest.approx(scalars(other), rel=1e-9)


def test_many_pairs_are_drawn_and_tell_the_same(monkeypatch):
    rows = rows_of(300, 4, 6, 0.5)
    exact = embedding_geometry(rows)
    monkeypatch.setattr(module, "_MOST_EXACT_PAIRS", 10)
    drawn, again = (embedding_geometry(rows, num_pairs=120_000) for _ in range(2))
    assert torch.equal(drawn.cosine_counts, again.cosine_counts) and drawn.cosine_counts.sum() == 120_000
    shares = [one.cosine_counts / one.cosine_counts.sum() for one in (exact, drawn)]
    torch.testing.assert_close(*shares, rtol=0, atol=0.005)
    assert drawn.mean_cosine == exact.mean_cosine


def test_a_row_of_zeros_has_no_direction_and_is_told():
    rows = rows_of(9, 3, 7)
    rows[4] = 0
    counts = torch.arange(9)
    found, without = embedding_geometry(rows, counts), embedding_geometry(rows[counts != 4], counts[counts != 4])
    assert found.num_zero_rows == 1 and not found.is_row[4] and found.is_row.sum() == 8
    assert {**scalars(found), "num_zero_rows": 0} == scalars(without)


@pytest.mark.parametrize("make", [lambda: make_backbone("gpt2"), lambda: make_backbone("llama"), make_model])
def test_a_model_is_its_output_embeddings_in_any_type(make):
    model = make()
    weight = model.get_output_embeddings().weight
    found = scalars(embedding_geometry(model))
    assert found == scalars(embedding_geometry(weight)) == scalars(embedding_geometry(weight.detach().numpy()))
    rounded = embedding_geometry(model.bfloat16())
    assert rounded.mean_cosine == pytest.approx(found["mean_cosine"], abs=1e-3)
    assert rounded.effective_rank == pytest.approx(found["effective_rank"], rel=1e-3)


def test_a_model_that_peft_has_wrapped_or_that_is_offloaded_has_the_embeddings_it_had():
    found = scalars(embedding_geometry(make_backbone("llama")))
    config = LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"])
    assert scalars(embedding_geometry(get_peft_model(make_backbone("llama"), config))) == found
    assert scalars(embedding_geometry(cpu_offload(make_backbone("llama"), torch.device("cpu")))) == found


@pytest.mark.parametrize(
    ("given", "frequencies", "told"),
    [
        (torch.zeros(4, 3), None, "two embeddings"),
        (torch.ones(4), None, "matrix"),
        (torch.full((3, 2), math.inf), None, "finite"),
        (make_backbone("llama").model, None, "no output embeddings"),
        (torch.eye(3), [1, 2], "frequency"),
    ],
)
def test_what_has_no_geometry_is_refused(given, frequencies, told):
    with pytest.raises(ValueError, match=told):
        embedding_geometry(given, frequencies)
