import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from hf_targets import MultiTokenForCausalLM
from hf_targets.multitoken.heads import HEADS, Head
from lab.draft_heads import settings_of
from tests.memory import realigned
from tests.tiny_models import left_padded, make_model, token_ids


class Gated(Head):
    """As one would add it from another package: the conjugate opens and closes what the hidden state says."""

    reads_conjugate = True

    def __init__(self, width, *, bias):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=bias)

    def forward(self, hidden, conjugate):
        return self.linear(hidden) * conjugate.sigmoid()


@pytest.fixture(autouse=True)
def registered():
    HEADS.register("gated", Gated)
    yield
    del HEADS._classes["gated"]


def test_a_kind_of_head_from_outside_is_trained_saved_and_drafts(tmp_path):
    model, ids = make_model("gpt2", head="gated"), token_ids(2, 9)
    model.train()(ids, labels=ids).loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.heads.parameters())
    model.eval().save_pretrained(tmp_path)
    again = realigned(AutoModelForCausalLM.from_pretrained(tmp_path))
    assert isinstance(again, MultiTokenForCausalLM) and isinstance(again.heads[0], Gated)
    assert torch.equal(again(ids, labels=ids).loss, model(ids, labels=ids).loss)
    model.double()
    prompt, mask = left_padded()
    options = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False}
    assert torch.equal(model.generate(prompt, draft_tokens=3, **options), model.generate(prompt, **options))


def test_it_is_a_kind_of_draft_heads_too():
    assert settings_of("gated") == {"target": "difference", "head": "gated"}
    with pytest.raises(ValueError, match="got 'hydra'"):
        settings_of("hydra")
