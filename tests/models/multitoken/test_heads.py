import pytest
import torch

from hf_targets import MultiTokenConfig
from hf_targets.models.multitoken.heads import FutureHeads
from tests.tiny_models import make_model, token_ids


def count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_a_head_at_width_2048_has_the_papers_number_of_parameters():
    with torch.device("meta"):
        heads = FutureHeads(MultiTokenConfig(ngram_size=4), width=2048)
    assert len(heads) == 3
    assert f"{count(heads[0]) / 1e6:.2f}" == "8.39"


def test_indexing_gives_the_head_that_the_model_uses():
    model, ids = make_model("gpt2", target="embedding"), token_ids(1, 7)
    hidden = model.backbone.base_model(ids)[0]
    for n, vectors in enumerate(model._predict_future(hidden, ids), start=1):
        torch.testing.assert_close(vectors, model.heads[n - 1](hidden)[:, : 7 - n])


def test_a_new_medusa_head_is_the_identity():
    model = make_model("gpt2", head="medusa")
    hidden = torch.randn(2, 3, 32)
    assert torch.equal(model.heads[0](hidden), hidden)


def test_bias_is_optional():
    with_bias, without = make_model("gpt2"), make_model("gpt2", head_bias=False)
    assert count(with_bias.heads) - count(without.heads) == 3 * 2 * 32


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("ngram_size", 1, "2 or more, got 1"),
        ("ngram_size", 2.5, "2 or more, got 2.5"),
        ("target", "word", "target must be one of 'difference', 'embedding', got 'word'"),
        ("head", "tree", "head must be one of 'mlp', 'medusa', got 'tree'"),
        ("loss_weight", -1.0, "loss_weight"),
        ("loss_weight", float("nan"), "loss_weight"),
        ("ensemble_weight", 1.2, "got 1.2"),
    ],
)
def test_a_field_out_of_range_is_an_error(field, value, told):
    with pytest.raises(ValueError, match=told):
        MultiTokenConfig(**{field: value})
