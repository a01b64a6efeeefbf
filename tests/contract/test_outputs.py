"""The output of every model: its values have the order of their names, the loss first, and it can be a tuple."""

from dataclasses import fields

import pytest
import torch
from torch.utils._pytree import tree_leaves
from transformers import AutoModel

from tests.model_cases import CASES, every_class, every_kind


def tensors(output):
    """Return the tensors in an output, in its order."""
    return [one for one in tree_leaves(output) if isinstance(one, torch.Tensor)]


def assert_equal(one, other):
    assert len(one) == len(other) and all(map(torch.equal, tensors(one), tensors(other)))


def with_tuples(model):
    """Return the model, configured to return tuples; not what it wraps: some of Transformers fail then."""
    model.config.return_dict = False
    return model


@every_kind
def test_values_are_in_the_order_of_their_names_and_the_loss_and_logits_are_first(case):
    model, batch = case.make(), case.batch()
    for given in (batch, case.reading(batch["input_ids"])):
        output = model(**given)
        assert [*output] == [field.name for field in fields(output) if field.name in output]
    assert [*model(**batch, skip_logits=False)][:2] == ["loss", "logits"]


@every_kind
def test_an_output_can_be_a_tuple_by_argument_and_by_configuration(case):
    model, batch = case.make(), case.batch()
    named = model(**batch, **case.options)
    assert_equal(model(**batch, **case.options, return_dict=False), named.to_tuple())
    with_tuples(model)
    output = model(**batch, **case.options)
    assert type(output) is tuple
    assert_equal(output, named.to_tuple())
    assert type(model(**batch, **case.options, return_dict=True)) is type(named)


@every_class
def test_a_model_that_returns_tuples_generates_the_same(case):
    if "generation" not in case.lacks:
        assert_equal(case.generate(with_tuples(case.make())), case.generate(case.make()))


@every_class
def test_hidden_states_are_what_the_layers_read_so_that_they_have_gradients(case):
    output = case.make()(**case.padded((9, 5), "right"), output_hidden_states=True)
    states = output[f"{case.prefix}hidden_states"][:-1]
    assert all(gradient.any() for gradient in torch.autograd.grad(output.loss, states))


@pytest.mark.parametrize("case", [CASES["mdlm-plain"], CASES["crammed"], CASES["lstm-tied"], CASES["tensorized"]])
def test_the_layers_alone_return_tuples(case, tmp_path):
    case.make().save_pretrained(tmp_path)
    layers, ids = AutoModel.from_pretrained(tmp_path), case.batch()["input_ids"]
    assert_equal(layers(ids, return_dict=False), layers(ids).to_tuple())
