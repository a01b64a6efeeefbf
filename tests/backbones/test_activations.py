"""The activation of GPT-2 in one pass is the one that Transformers writes out."""

import copy

import pytest
import torch
from transformers.activations import NewGELUActivation

from hf_targets.backbones.activations import fuse_gelu
from tests.tiny_backbones import make_backbone, token_ids


@pytest.mark.parametrize("family", ["gpt2", "gpt_neo", "llama"])
def test_outputs_and_gradients_are_those_of_the_formula(family):
    plain = make_backbone(family).double()
    fused, ids = copy.deepcopy(plain), token_ids(2, 7)
    fuse_gelu(fused)
    assert not any(isinstance(module, NewGELUActivation) for module in fused.modules())
    assert fused.state_dict().keys() == plain.state_dict().keys()
    for model in (plain, fused):
        model.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
    torch.testing.assert_close(fused(input_ids=ids).logits, plain(input_ids=ids).logits, rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(fused.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-7, atol=1e-9)
