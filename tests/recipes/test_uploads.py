"""What a recipe uploads with `--push_to_hub true`: once, at its end, what it leaves in its folder."""

import fnmatch
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi

from tests.recipes.running import run_recipe, small_text

SHORT = ["--max_steps", 2, "--disable_tqdm", "true"]
SMALL = [*SHORT, "--dataset", small_text(), "--max_train_words", "600", "--vocab_size", 300]


@pytest.fixture
def uploads(monkeypatch):
    """Return what is uploaded meanwhile: of each upload the files by name."""
    found = []

    def upload_folder(self, *, folder_path, allow_patterns=("*",), **_):
        files = [path for path in Path(folder_path).rglob("*") if path.is_file()]
        named = {str(path.relative_to(folder_path)): path.read_bytes() for path in files}
        found.append({name: named[name] for name in named if any(fnmatch.fnmatch(name, one) for one in allow_patterns)})

    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    monkeypatch.setattr(HfApi, "create_repo", lambda self, name, **_: SimpleNamespace(repo_id=name))
    return found


@pytest.mark.parametrize("name", ["train_awd_lstm", "train_semi_autoregressive", "finetune_sft", "train_reader"])
def test_a_recipe_uploads_its_model_once_with_card_and_results(name, uploads, finetuned, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "the sea", "completion": "is deep"}\n' * 6)
    base = ["--model_name_or_path", finetuned[0] / "plain-seed0"]
    given = {"finetune_sft": [*SHORT, *base, "--dataset", tmp_path / "rows.jsonl"], "train_reader": [*SMALL, *base]}
    pushed = ["--push_to_hub", "true", "--hub_model_id", "me/tiny", "--output_dir", tmp_path / "out"]
    run_recipe(name, *given.get(name, SMALL), *pushed)
    (files,) = uploads
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= files.keys()
    assert json.loads(files["results.json"]) and b'("me/tiny")' in files["README.md"]
    assert not {"training_args.bin", "adapter_config.json", "settings.json"} & files.keys()
    assert all((tmp_path / "out" / name).read_bytes() == content for name, content in files.items())
