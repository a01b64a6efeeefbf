"""The base model of draft heads, and the text that it writes for them."""

from types import SimpleNamespace

import torch

from lab.draft_heads import draft_text, load_base
from tests.tiny_models import make_backbone, make_model


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
