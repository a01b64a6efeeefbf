import json
import logging
import os
import shutil
from pathlib import Path

import pytest
import torch

from hf_targets.backbones.configuration import PACKAGE_IMPORT
from hf_targets.training.averaging import AVERAGING_NAME
from hf_targets.training.checkpoints import defect_of, newest_whole_checkpoint
from hf_targets.training.lora import add_lora
from tests.masked_diffusion import training as diffusion_training
from tests.multitoken import test_trainer as test_multitoken
from tests.phrases import test_trainer as test_phrases
from tests.tiny_models import make_backbone, make_dynamic_model, make_model

MODELS = {
    "plain": lambda folder, **options: test_multitoken.make_trainer(folder, make_backbone("gpt2"), **options),
    "heads": lambda folder, **options: test_multitoken.make_trainer(folder, make_model("gpt2"), **options),
    "lora": lambda folder, **options: test_phrases.make_trainer(
        folder, add_lora(make_dynamic_model("llama"), 2), **options
    ),
    "averaged": lambda folder, **options: diffusion_training.make_trainer(folder, ema_decay=0.5, **options),
}
UNCHECKED = {"README.md", PACKAGE_IMPORT}  # no training goes on from it


@pytest.fixture(scope="module", params=MODELS)
def saved(request, tmp_path_factory):
    """Return a trainer, and a folder with its checkpoints after 2 and 4 steps."""
    folder = tmp_path_factory.mktemp(request.param)
    trainer = MODELS[request.param](folder, save_strategy="steps", save_steps=2)
    trainer.train()
    return trainer, folder


@pytest.fixture
def copied(saved, tmp_path):
    """Return a trainer, and a copy of its checkpoints that may be damaged."""
    trainer, folder = saved
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    trainer.args.output_dir = str(tmp_path)
    return trainer, tmp_path


def test_the_newest_is_taken_by_its_number(copied, caplog):
    trainer, folder = copied
    shutil.copytree(folder / "checkpoint-4", folder / "checkpoint-10")
    (folder / "checkpoint-x").mkdir()
    (folder / "checkpoint-99").touch()
    assert newest_whole_checkpoint(trainer) == folder / "checkpoint-10"
    assert not caplog.records


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_checkpoint_with_a_file_cut_short_is_passed_over_with_a_warning(kept, copied, caplog):
    trainer, folder = copied
    files = [file for file in (folder / "checkpoint-4").rglob("*") if file.is_file() and file.name not in UNCHECKED]
    assert len(files) >= 7
    for file in files:
        whole = file.read_bytes()
        os.truncate(file, int(kept * len(whole)))
        caplog.clear()
        assert newest_whole_checkpoint(trainer) == folder / "checkpoint-2", file
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "checkpoint-4 is not whole" in record.getMessage()
        assert file.name in record.getMessage()
        file.write_bytes(whole)
    assert newest_whole_checkpoint(trainer) == folder / "checkpoint-4"


def test_a_checkpoint_that_was_not_saved_to_its_end_is_passed_over(copied):
    trainer, folder = copied
    needed = [Path(name) for name in ("trainer_state.json", "rng_state.pth", "scheduler.pt", "optimizer.pt")]
    needed += [file.relative_to(folder / "checkpoint-4") for file in (folder / "checkpoint-4").rglob("*.safetensors")]
    assert len(needed) == (6 if (folder / "checkpoint-4" / AVERAGING_NAME).exists() else 5)
    for name in needed:
        (folder / "checkpoint-4" / name).rename(folder / "aside")
        assert newest_whole_checkpoint(trainer) == folder / "checkpoint-2", name
        (folder / "aside").rename(folder / "checkpoint-4" / name)


def test_without_a_whole_checkpoint_there_is_none(copied, caplog):
    trainer, folder = copied
    for number in (2, 4):
        (folder / f"checkpoint-{number}" / "trainer_state.json").unlink()
    assert newest_whole_checkpoint(trainer) is None
    assert [record.getMessage().split(" is not whole")[0][-12:] for record in caplog.records] == [
        "checkpoint-4",
        "checkpoint-2",
    ]
    shutil.rmtree(folder)
    assert newest_whole_checkpoint(trainer) is None


def test_a_model_saved_in_shards_needs_all_of_them(copied):
    trainer, folder = copied
    checkpoint = folder / "checkpoint-4"
    for file in [*checkpoint.rglob("model.safetensors"), *checkpoint.rglob("adapter_model.safetensors")]:
        file.rename(file.with_name("model-00001-of-00002.safetensors"))
    shards = {f"weight{number}": f"model-0000{number}-of-00002.safetensors" for number in (1, 2)}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert "model-00002-of-00002.safetensors, which is missing" in (defect_of(checkpoint, trainer) or "")
    shutil.copy(checkpoint / shards["weight1"], checkpoint / shards["weight2"])
    assert defect_of(checkpoint, trainer) is None


def test_a_checkpoint_of_the_model_alone_is_whole_where_no_more_is_saved(tmp_path):
    trainer = MODELS["plain"](tmp_path, save_strategy="steps", save_steps=4, save_only_model=True)
    trainer.train()
    assert defect_of(tmp_path / "checkpoint-4", trainer) is None
    trainer.args.save_only_model = False
    assert defect_of(tmp_path / "checkpoint-4", trainer) == "it lacks optimizer.pt, rng_state.pth, scheduler.pt"


def test_a_file_of_another_kind_under_the_name_of_one_is_no_part(copied):
    trainer, folder = copied
    torch.save({"a": 1}, folder / "checkpoint-4" / "trainer_state.json")
    assert newest_whole_checkpoint(trainer) == folder / "checkpoint-2"
    (folder / "checkpoint-4" / "trainer_state.json").write_text("{}")
    assert newest_whole_checkpoint(trainer) == folder / "checkpoint-2"
