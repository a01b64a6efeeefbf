"""Whether a uniformly negative direction exists, where it is known; and the proof of each answer."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from hf_targets import uniformly_negative_direction
from hf_targets.cosine.negative_direction import direction_certificate, softmax_inputs
from tests.masked_diffusion.models import make_mdlm, masked_ids
from tests.tiny_backbones import make_backbone, token_ids
from tests.tiny_models import make_model
from tests.tiny_seq2seq import make_pair_backbone, make_pair_model, pairs


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check(states, certificate, exists):
    """Assert that an answer is the right one, and that its proof holds."""
    assert (certificate.direction is not None) == exists == (certificate.weights is None)
    if exists:
        cosines = states @ certificate.direction / states.norm(dim=1)
        assert (states @ certificate.direction < 0).all()
        assert certificate.direction.norm() == pytest.approx(1)
        assert certificate.margin == pytest.approx(-cosines.max().item())
    else:
        assert certificate.margin == 0 and (certificate.weights >= 0).all()
        assert certificate.weights.sum() == pytest.approx(1)
        assert (certificate.weights @ states).norm() <= 3e-8 * states.norm(dim=1).max()


def half_space(num_states, dim, seed, margin=0.01):
    """Return states of which none has a product above -margin with some direction."""
    states, direction = random(num_states, dim, seed=seed), random(dim, seed=seed + 1)
    direction /= direction.norm()
    return states - (2 * (states @ direction).clamp(min=0) + margin)[:, None] * direction


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 10**6))
def test_states_in_a_half_space_have_one(num_states, dim, seed):
    states = half_space(num_states, dim, seed)
    check(states, direction_certificate(states), exists=True)


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 10**6))
def test_states_around_the_origin_have_none(num_states, dim, seed):
    states = half_space(num_states, dim, seed)
    weights = torch.rand(num_states, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    states = torch.cat([states, -(weights @ states)[None]])  # so that 0 is a mean of them
    check(states, direction_certificate(states), exists=False)


@given(st.integers(2, 30), st.integers(2, 6), st.floats(0, 2), st.integers(0, 10**6))
def test_a_linear_programme_gives_the_same_answer(num_states, dim, shift, seed):
    states = random(num_states, dim, seed=seed) + shift
    rows = torch.cat([states / states.norm(dim=1, keepdim=True), torch.ones(num_states, 1)], dim=1)
    bounds = [(-1, 1)] * dim + [(None, 1)]
    largest = -linprog([0] * dim + [-1], A_ub=rows, b_ub=[0] * num_states, bounds=bounds).fun
    check(states, direction_certificate(states), exists=largest > 3e-8)


def test_no_direction_has_a_larger_margin():
    states = half_space(30, 4, 3)
    found = direction_certificate(states)
    units = states / states.norm(dim=1, keepdim=True)
    others = found.direction + 0.3 * random(2000, 4, seed=9)
    others /= others.norm(dim=1, keepdim=True)
    assert ((units @ others.T).amax(dim=0) >= -found.margin - 1e-12).all()


@pytest.mark.parametrize("exists", [True, False])
def test_many_states_of_size_128(exists):
    states = half_space(2000, 128, 0, margin=1e-3)
    if not exists:
        states[0] = -(torch.rand(300, dtype=torch.float64) @ states[1:301])
    check(states, direction_certificate(states), exists)


def test_layer_normalisation_leaves_one_unless_its_bias_is_in_the_way():
    states = torch.nn.functional.layer_norm(random(500, 16), (16,))
    scales = torch.rand(16, dtype=torch.float64) + 0.5
    check(states * scales + 0.3, direction_certificate(states * scales + 0.3), exists=True)
    check(states * scales, direction_certificate(states * scales), exists=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opposite_states_that_are_rounded_have_none(dtype):
    for seed in range(60):
        state = random(8, seed=seed)
        assert uniformly_negative_direction(torch.stack([state, -0.7 * state]).to(dtype)) is None


def test_lengths_of_states_do_not_matter_and_half_precision_is_read():
    states = half_space(20, 4, 1, margin=0.2)
    scaled = states * torch.logspace(-6, 6, 20, dtype=torch.float64)[:, None]
    torch.testing.assert_close(direction_certificate(states).direction, direction_certificate(scaled).direction)
    assert uniformly_negative_direction(states.bfloat16()) is not None
    assert uniformly_negative_direction(torch.tensor([[1.0], [-2.0]])) is None


@pytest.mark.parametrize(
    "states", [torch.zeros(0, 3), torch.zeros(3), torch.tensor([[1.0, math.nan]])], ids=["none", "vector", "nan"]
)
def test_what_are_no_states_is_refused(states):
    with pytest.raises(ValueError, match="hidden states"):
        uniformly_negative_direction(states)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_proof_has_the_type_of_the_states_so_that_a_product_checks_it(dtype):
    states = random(40, 8).to(dtype)
    above = (random(40, 8).abs() + 0.01).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    direction, weights = uniformly_negative_direction(above), direction_certificate(states).weights
    assert direction.dtype == weights.dtype == wide
    assert (above.to(wide) @ direction).max() < 0
    assert (weights @ states.to(wide)).abs().max() < 1e-6


@pytest.mark.parametrize("make", [lambda: make_backbone("gpt2"), lambda: make_backbone("opt"), make_model])
def test_softmax_inputs_give_the_logits(make):
    model, ids = make(), token_ids(3, 7)
    found = softmax_inputs(model, [{"input_ids": ids}], 99)
    torch.testing.assert_close(model.get_output_embeddings()(found), model(ids).logits.flatten(0, 1))


def test_softmax_inputs_of_masked_diffusion_are_its_last_hidden_states():
    model, ids = make_mdlm(), masked_ids(2, 9)
    found = softmax_inputs(model, [{"input_ids": ids}], 99)
    assert torch.equal(found, model(ids, output_hidden_states=True).hidden_states[-1].flatten(0, 1))
    output = model.get_output_embeddings()
    assert not output._forward_pre_hooks and not model._forward_hooks


def test_padding_has_no_state_and_so_many_are_read_as_are_asked_for():
    model, ids, mask = make_backbone("gpt2").train(), token_ids(2, 5), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    batches = [{"input_ids": ids, "attention_mask": mask}] * 3
    found = softmax_inputs(model, batches, 99)
    assert len(found) == 24 and model.training
    assert torch.equal(softmax_inputs(model, batches, 10), found[:10])
    assert not model.get_output_embeddings()._forward_pre_hooks


@pytest.mark.parametrize("make", [make_pair_backbone, lambda: make_pair_backbone("t5"), make_pair_model])
def test_softmax_inputs_of_a_model_with_an_encoder_give_the_logits_of_its_targets(make):
    model, batch = make(), pairs()
    batch["labels"][1, 2:] = -100
    found, output = softmax_inputs(model, [batch], 99), model.get_output_embeddings()
    bias = sum(value for name, value in model.named_buffers() if name.endswith("final_logits_bias"))
    torch.testing.assert_close(output(found), model(**batch).logits[batch["labels"] != -100] - bias)


@pytest.mark.parametrize("make", [make_pair_backbone, lambda: make_backbone("llama").model], ids=["encoder", "no head"])
def test_what_has_no_states_is_refused(make):
    with pytest.raises(ValueError, match=r"no output embeddings|labels"):
        softmax_inputs(make(), [{"input_ids": token_ids(1, 3)}], 3)
