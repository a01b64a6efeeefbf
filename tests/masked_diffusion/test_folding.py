import pytest
import torch
from transformers import AutoModelForMaskedLM

from tests.masked_diffusion.models import CURVES, MASK, make_mdlm, masked_batch, masked_ids
from tests.memory import realigned

kinds = pytest.mark.parametrize("kind", CURVES)


def padded():
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[0, 6:], mask[2, :4] = 0, 0
    return {**masked_batch(), "attention_mask": mask}


@kinds
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_folded_model_is_the_same_function(kind, mode):
    model, batch = make_mdlm(kind).double().train(mode == "train"), padded()
    folded = model.fold_modulation()
    assert folded.training == model.training
    expected, got = (one(**batch, skip_logits=False) for one in (model, folded))
    real = batch["attention_mask"] == 1
    torch.testing.assert_close(got.logits[real], expected.logits[real], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(got.loss, expected.loss, rtol=1e-10, atol=1e-10)
    if expected.curve_probabilities is not None:
        torch.testing.assert_close(got.curve_probabilities, expected.curve_probabilities, rtol=1e-10, atol=1e-10)
    without = [one(batch["input_ids"]).logits for one in (model, folded)]
    torch.testing.assert_close(without[1], without[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.3)])
def test_a_model_of_less_precision_is_folded_in_its_own_type(dtype, tolerance):
    model, canvas = make_mdlm("hidden").to(dtype), masked_ids(3, 9)
    folded = model.fold_modulation()
    assert {parameter.dtype for parameter in folded.parameters()} == {dtype}
    difference = (folded(canvas).logits - model(canvas).logits)[canvas == MASK][:, :MASK]
    assert difference.abs().mean() < tolerance


@kinds
def test_folding_makes_a_copy_without_modulation_and_leaves_the_model_as_it_was(kind):
    model, batch = make_mdlm(kind), masked_batch()
    before, expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}, model(**batch).loss
    folded = model.fold_modulation()
    assert folded.config.folded and not model.config.folded
    names = [name for name, _ in folded.named_parameters()]
    assert not any(word in name for name in names for word in ("adaLN", "sigma_map", "norm"))
    folded.train()(**batch).loss.backward()
    assert all(parameter.grad is not None for parameter in folded.parameters())
    with torch.no_grad():
        for parameter in folded.parameters():
            parameter.zero_()
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(model(**batch).loss, expected)


@kinds
def test_a_folded_model_comes_back_bit_for_bit(kind, tmp_path):
    folded, batch = make_mdlm(kind).fold_modulation(), masked_batch()
    folded.save_pretrained(tmp_path)
    again = realigned(AutoModelForMaskedLM.from_pretrained(tmp_path))
    assert again.config.folded
    assert torch.equal(again(**batch).logits, folded(**batch).logits)


def test_only_a_constant_modulation_is_folded_and_only_once():
    for fixed in ({"time_conditioning": True}, {"folded": True}):
        with pytest.raises(ValueError, match="constant modulation"):
            make_mdlm(**fixed).fold_modulation()
    with pytest.raises(ValueError, match="folded"):
        make_mdlm(folded=True).to_published()
