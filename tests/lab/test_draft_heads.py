"""The base model of draft heads, and the text that it writes for them."""

import json
from dataclasses import replace

import torch

from hf_targets.data.tokenization import word_level_tokenizer
from lab.draft_heads import DraftText, load_base
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


def test_prompts_are_turns_of_a_user_where_there_is_a_template_and_others_are_measured_on(tmp_path):
    base, told = make_backbone("gpt2"), {"block_size": 40, "cache_dir": str(tmp_path), "num_prompts": 3}
    tokenizer = word_level_tokenizer([f"[user] {' '.join(map(str, range(10)))} a b [assistant]"])
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}[assistant]"
    file = tmp_path / "turns.jsonl"
    file.write_text("".join(json.dumps({"turn": f"{n // 10} {n % 10}"}) + "\n" for n in range(40)))
    text = DraftText(prompts=str(file), prompt_column="turn", num_generated=5, **told)
    starts = [tokenizer.encode(f"[user] {n // 10} {n % 10} [assistant]") for n in (*range(5), *range(38, 40))]
    rows, (tested,) = text.rows(base, tokenizer), text.test_batches(base, tokenizer, 3)
    assert [row[: len(start)] for row, start in zip(rows["input_ids"], starts[:5], strict=True)] == starts[:5]
    assert tested["input_ids"].tolist() == starts[5:]
    other = replace(text, test_prompts=str(file), test_column="turn")
    others = other.test_batches(base, tokenizer, 3)[0]["input_ids"].tolist()
    assert others == [tokenizer.encode(f"[user] {n // 10} {n % 10} [assistant]") for n in (38, 39)]
