"""Reversed word differences: the same model, but for the sign of what odd heads learn."""

import copy

import pytest
import torch
from scipy.special import binom

from tests.tiny_masked import make_masked_model, masked_batch
from tests.tiny_models import make_model, token_ids
from tests.tiny_seq2seq import make_pair_model, pairs

LINEAR_AT_THE_END = ("mlp", "conditional")


def turned(model):
    """Return the model with reversed differences, and the last layer of each odd head negated."""
    other = copy.deepcopy(model)
    other.config.reversed_differences = other.heads.reverse = True
    with torch.no_grad():
        for n in range(1, len(other.heads) + 1, 2):
            for parameter in other.heads[n - 1].outer.parameters():
                parameter.neg_()
    return other


def make_reversed(**config):
    return make_model("gpt2", reversed_differences=True, **config)


def all_outputs(model) -> list[torch.Tensor]:
    ids = token_ids(2, 9)
    output = model(ids, labels=ids, nll_weights=[0.0, 0.5])
    mixed = model(ids, ensemble_weight=0.5).logits
    return [output.loss, *output.loss_parts.values(), output.nlls, output.logits, mixed]


@pytest.mark.parametrize("head", LINEAR_AT_THE_END)
def test_a_linear_last_layer_absorbs_the_direction(head):
    model = make_model("gpt2", head=head)
    for ours, others in zip(all_outputs(model), all_outputs(turned(model)), strict=True):
        assert torch.equal(ours, others)


def test_heads_reconstruct_embeddings_as_written_out():
    model = make_reversed().double()
    torch.manual_seed(0)
    hidden = torch.randn(1, 8, 32, dtype=torch.float64)
    tokens = torch.randn(1, 7, 32, dtype=torch.float64)  # those of positions 1 to 7
    for n, predicted in enumerate(model.heads(hidden, tokens), start=1):
        for i in range(8 - n):  # x[t], x[t+1], ... of t = i + 1 are known; x[t+n] is to be found
            difference = model.heads[n - 1](hidden[:, i])
            # sum_j C(n, j) (-1)^j x[t+j] = difference, solved for x[t+n]
            known = sum(binom(n, j) * (-1) ** j * tokens[:, i + j] for j in range(n))
            torch.testing.assert_close(predicted[:, i], (difference - known) * (-1) ** n, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("make", "batch"), [(make_pair_model, pairs), (make_masked_model, masked_batch)])
def test_models_of_other_kinds_absorb_it_too(make, batch):
    model = make()
    assert torch.equal(*(one(**batch()).loss for one in (model, turned(model))))
