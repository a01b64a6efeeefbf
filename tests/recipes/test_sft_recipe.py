import json

from hf_targets import MultiTokenForCausalLM
from tests.recipes.running import run_recipe


def test_a_model_is_tuned_by_trl_alone_and_with_heads_that_draft(finetuned, tmp_path):
    rows = [{"prompt": "the sea ", "completion": f"and the ship {n}"} for n in range(6)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    model = ["--model_name_or_path", finetuned[0] / "plain-seed0", "--dataset", tmp_path / "rows.jsonl"]
    printed = run_recipe("tables/finetune_sft", *model, "--disable_tqdm", "true", "--output_dir", tmp_path / "out")
    folders = {row: tmp_path / "out" / f"{row}-seed0" for row in ("trl", "wdr")}
    found = {row: json.loads((folder / "results.json").read_text()) for row, folder in folders.items()}
    assert found["trl"]["loss_before"] == found["wdr"]["loss_before"] and found["wdr"]["same_text"] == 1
    assert "chain x plain 2" in printed and "auto_x_plain_1" not in found["trl"]
    assert MultiTokenForCausalLM.from_pretrained(folders["wdr"]).config.target == "difference"
