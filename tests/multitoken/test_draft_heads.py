from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset

from hf_targets import MultiTokenForCausalLM, MultiTokenTrainingArguments
from hf_targets.multitoken.draft_heads import KINDS, draft_text, load_base, train_draft_heads
from tests.tiny_models import make_backbone, make_model, token_ids

kinds = pytest.mark.parametrize("kind", KINDS)
NGRAM_SIZE = 3


def blocks(rows=8, length=10):
    ids = token_ids(rows, length).tolist()
    return Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * length] * rows, "labels": ids})


def train(folder, kind="simple", base=None, **arguments):
    options = {"max_steps": 2, "learning_rate": 1e-2, "weight_decay": 0.1, **arguments}
    args = MultiTokenTrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **options,
    )
    return train_draft_heads(base or make_backbone("gpt2"), kind, args, blocks(), ngram_size=NGRAM_SIZE)


def with_dropout(family):
    """Return a backbone with all the dropout that its family knows."""
    model = make_backbone(family)
    for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop", "embed_dropout", "dropout", "attention_dropout"):
        if hasattr(model.config, name):
            setattr(model.config, name, 0.5)
    return type(model)(model.config)


@kinds
def test_training_changes_all_heads_and_nothing_of_the_backbone(kind, tmp_path):
    base = make_backbone("gpt2")
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    model = train(tmp_path, kind, base)
    assert model.backbone is base
    assert before.keys() == base.state_dict().keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.state_dict().items())
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in base.parameters())
    untrained = train(tmp_path, kind, learning_rate=0.0)
    for (name, trained), start in zip(model.heads.named_parameters(), untrained.heads.parameters(), strict=True):
        assert trained.requires_grad
        assert not torch.equal(trained, start), name


@pytest.mark.parametrize(
    ("kind", "target", "head"),
    [
        ("wdr", "difference", "conditional"),
        ("wdr-plain", "difference", "mlp"),
        ("simple", "embedding", "mlp"),
        ("medusa", "embedding", "medusa"),
    ],
)
def test_the_model_returned_has_heads_of_the_kind_and_is_ready_to_decode(kind, target, head, tmp_path):
    model = train(tmp_path, kind, max_steps=1)
    assert (model.config.target, model.config.head) == (target, head)
    assert model.config.ngram_size == NGRAM_SIZE
    assert not any(module.training for module in model.modules())
    ids = token_ids(1, 5)
    model.double()
    plain = model.generate(ids, do_sample=False, max_new_tokens=6)
    assert torch.equal(model.generate(ids, do_sample=False, max_new_tokens=6, draft_tokens=NGRAM_SIZE - 1), plain)


def test_heads_depend_on_the_seed_alone(tmp_path):
    models = []
    for seed in (0, 0, 1):
        torch.rand(7)
        base = make_backbone("gpt2")
        torch.manual_seed(len(models))
        models.append(train(tmp_path, base=base, seed=seed))
    one, again, other = (torch.cat([p.detach().flatten() for p in model.heads.parameters()]) for model in models)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("family", ["gpt_neo", "gpt2", "llama", "opt"])
def test_a_frozen_backbone_is_read_without_dropout_while_its_heads_train(family):
    base = with_dropout(family)
    model = MultiTokenForCausalLM.from_base(base, ngram_size=NGRAM_SIZE)
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


def test_an_unknown_kind_is_an_error_that_names_the_known_ones_and_leaves_the_model_alone(tmp_path):
    base = make_backbone("gpt2")
    with pytest.raises(ValueError, match="got 'eagle'"):
        train(tmp_path, "eagle", base)
    assert all(parameter.requires_grad for parameter in base.parameters())


def test_the_base_of_a_model_with_heads_is_its_backbone_and_keeps_the_name_it_was_loaded_by(tmp_path):
    model = make_model("gpt2")
    model.save_pretrained(tmp_path / "heads")
    model.backbone.save_pretrained(tmp_path / "plain")
    for name in ("heads", "plain"):
        base = load_base(str(tmp_path / name))
        assert type(base) is type(model.backbone)
        assert base.name_or_path == str(tmp_path / name)
        assert not any(module.training for module in base.modules())
        assert all(map(torch.equal, base.state_dict().values(), model.backbone.state_dict().values()))


def test_a_model_writes_text_to_train_on_and_other_text_to_measure_on():
    base, tokenizer = make_backbone("gpt2"), SimpleNamespace(bos_token_id=5, eos_token_id=0)
    sizes = {"block_size": 8, "num_generated": 6, "num_held_out": 6}
    train_text, held_out = draft_text(base, tokenizer, dataset=None, **sizes)
    assert (len(train_text), len(held_out)) == (6, 6)
    assert held_out["input_ids"][:] != train_text["input_ids"][:]
    shorter, _ = draft_text(base, tokenizer, dataset=None, **{**sizes, "num_generated": 2})
    assert len(shorter) == 2
    other, _ = draft_text(base, tokenizer, dataset=None, seed=7, **sizes)
    assert other["input_ids"][:] != train_text["input_ids"][:]
