import pytest
import torch
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from hf_targets import MultiTokenConfig, MultiTokenForCausalLM
from hf_targets.multitoken.heads import HEADS, FutureHeads
from tests.tiny_models import TARGETS, make_backbone, make_model, token_ids


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
    for n, vectors in enumerate(model.heads(hidden, None), start=1):
        torch.testing.assert_close(vectors, model.heads[n - 1](hidden)[:, : 7 - n])


@pytest.mark.parametrize("target", TARGETS)
def test_heads_say_of_the_last_positions_what_they_say_of_all_and_of_each_alone(target):
    model = make_model("gpt2", target=target)
    torch.manual_seed(0)
    hidden, tokens = torch.randn(2, 7, 32), torch.randn(2, 6, 32)
    whole = model.heads(hidden, tokens)
    for past in range(8):
        for n, (last, full) in enumerate(zip(model.heads(hidden, tokens, past), whole, strict=True), start=1):
            assert last.shape[1] == max(7 - max(past, n), 0)
            torch.testing.assert_close(last, full[:, full.shape[1] - last.shape[1] :])
    states = model.heads.states(hidden[:, 1], 3)
    for n in (1, 2, 3):
        alone = model.heads.complete(n, states[:, n - 1], tokens[:, 1 : 1 + n])
        torch.testing.assert_close(alone, whole[n - 1][:, 1])


def test_a_conditional_head_reads_both_inputs_at_one_length():
    head = make_model("gpt2", target="conditional").heads[0].double()
    torch.manual_seed(0)
    hidden, conjugate = torch.randn(2, 32, dtype=torch.float64), torch.randn(2, 32, dtype=torch.float64)
    scaled = [part / part.pow(2).mean(dim=-1, keepdim=True).sqrt() for part in (hidden, conjugate)]
    expected = head.outer((torch.cat(scaled, dim=-1) @ head.inner.weight.T + head.inner.bias).clamp(min=0))
    torch.testing.assert_close(head(hidden, conjugate), expected)
    torch.testing.assert_close(head(3 * hidden, 0.5 * conjugate), expected, rtol=1e-6, atol=1e-6)


def test_a_new_medusa_head_is_the_identity():
    model = make_model("gpt2", head="medusa")
    hidden = torch.randn(2, 3, 32)
    assert torch.equal(model.heads[0](hidden), hidden)


@pytest.mark.parametrize(
    "fields",
    [
        {"target": "embedding"},
        {"target": "embedding", "head": "medusa", "separate_output_heads": True},
        *({"head": head, "reversed_differences": reverse} for head in HEADS for reverse in (False, True)),
    ],
    ids=str,
)
def test_heads_on_a_trained_model_begin_with_the_losses_of_the_ordinary_prediction_in_their_place(fields, tmp_path):
    make_backbone("llama").save_pretrained(tmp_path / "base")
    model, ids = MultiTokenForCausalLM.from_base(tmp_path / "base", ngram_size=4, **fields), token_ids(2, 12)
    output, logits = model(ids, labels=ids), model.backbone(ids).logits
    assert model.heads.are_new
    for n in (1, 2, 3):
        expected = F.cross_entropy(logits[:, : -1 - n].flatten(0, 1), ids[:, 1 + n :].flatten(), reduction="sum")
        torch.testing.assert_close(output.loss_parts[f"head_{n}"], expected / ids[:, 1:].numel())
    output.loss.backward()
    moved = [*model.heads.layers, *(model.heads.factors or ())]
    assert all(any(p.grad.any() for p in part.parameters()) for part in moved)
    model.save_pretrained(tmp_path / "heads", heads_only=True)
    again = MultiTokenForCausalLM.from_pretrained(tmp_path / "heads")
    assert torch.equal(again(ids, labels=ids).loss, output.loss)


def test_a_model_made_of_the_configuration_of_a_trained_one_has_the_papers_heads(tmp_path):
    make_backbone("llama").save_pretrained(tmp_path)
    new = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    for base, chosen in ((new, {}), (tmp_path, {"residual_heads": False})):
        assert not MultiTokenForCausalLM.from_base(base, **chosen).config.residual_heads


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"ngram_size": 1}, "2 or more, got 1"),
        ({"ngram_size": 2.5}, "ngram_size"),
        ({"target": "word"}, "target"),
        ({"head": "tree"}, "head must be one of"),
        ({"head": "conditional", "target": "embedding"}, "conjugate"),
        ({"reversed_differences": True, "target": "embedding"}, "reversed_differences"),
        ({"loss_weight": -1.0}, "loss_weight"),
        ({"loss_weight": float("nan")}, "loss_weight"),
        ({"ensemble_weight": 1.2}, "got 1.2"),
        ({"draft_vocab_size": 0}, "draft_vocab_size"),
        ({"separate_output_heads": True}, "separate_output_heads"),
        ({"separate_output_heads": True, "target": "embedding", "ensemble_weight": 0.2}, "ensemble_weight"),
        ({"separate_output_heads": True, "target": "embedding", "draft_vocab_size": 4}, "draft_vocab_size"),
    ],
)
def test_a_field_out_of_range_is_an_error(fields, told):
    with pytest.raises(ValueError, match=told):
        MultiTokenConfig(**fields)


def with_dropout(family):
    """Return a backbone with all the dropout that its family knows."""
    model = make_backbone(family)
    for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop", "embed_dropout", "dropout", "attention_dropout"):
        if hasattr(model.config, name):
            setattr(model.config, name, 0.5)
    return type(model)(model.config)


@pytest.mark.parametrize("family", ["gpt_neo", "gpt2", "llama", "opt"])
def test_a_frozen_backbone_is_read_without_dropout_while_its_heads_train(family):
    base = with_dropout(family)
    model = MultiTokenForCausalLM.from_base(base, ngram_size=3)
    ids = token_ids(2, 9)
    with torch.no_grad():
        model.train()
        assert not torch.equal(model(ids).logits, model(ids).logits)
        base.requires_grad_(False)
        model.train()
        assert model.heads.training
        trained = model(ids).logits
        assert torch.equal(trained, model(ids).logits)
        torch.testing.assert_close(trained, model.eval()(ids).logits)


def test_residual_heads_that_a_checkpoint_lacks_begin_as_new_ones(monkeypatch):
    monkeypatch.setattr(torch, "empty_like", lambda tensor, **given: torch.full_like(tensor, torch.nan, **given))
    config = make_model("gpt2", residual_heads=True).config
    model = MultiTokenForCausalLM.from_pretrained(None, config=config, state_dict={}, strict=False)
    assert model.heads.are_new and not any(factor.weight.any() for factor in model.heads.factors)
