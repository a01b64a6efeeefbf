"""What a Trainer uploads of its folder."""

import json
from types import SimpleNamespace

import pytest
from transformers import trainer

from hf_targets.training.uploads import uploads_of_own_files


@pytest.mark.parametrize("has_code", [True, False])
def test_the_code_of_a_model_is_uploaded_with_it_and_other_programs_are_not(has_code, tmp_path, monkeypatch):
    given = []
    api = SimpleNamespace(create_repo=None, upload_folder=lambda **kwargs: given.append(kwargs["allow_patterns"]))
    monkeypatch.setattr(trainer, "hf_api", lambda: api)
    (tmp_path / "config.json").write_text(json.dumps({"auto_map": {"AutoModel": "mine.Mine"}} if has_code else {}))
    (tmp_path / "mine.py").touch()
    with uploads_of_own_files(str(tmp_path), None):
        trainer.hf_api().upload_folder(folder_path=str(tmp_path))
    assert ("mine.py" in given[0]) is has_code
    assert "config.json" in given[0]
