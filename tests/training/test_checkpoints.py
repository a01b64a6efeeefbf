"""The mean of the best checkpoints: which they are, and what the mean is."""

import json

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoConfig, TrainerControl, TrainerState, TrainingArguments

from hf_targets import CosineRegularizedTrainer
from hf_targets.training.checkpoints import KeepBest, best_checkpoints, last_checkpoints, load_mean, newest_checkpoint
from hf_targets.training.trainer import TargetTrainer
from tests.tiny_models import make_backbone
from tests.tiny_seq2seq import make_pair_model
from tests.trainer_runs import SHORT


def leave(folder, step, perplexity, seed):
    model = make_pair_model("marian", seed)
    model.save_pretrained(folder / f"checkpoint-{step}")
    logs = [{"step": 1, "eval_perplexity": 1.0}, {"step": step, "loss": 2.0}]
    if perplexity is not None:
        logs.append({"step": step, "eval_perplexity": perplexity})
    state = {"global_step": step, "log_history": logs}
    (folder / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps(state))


def test_the_mean_is_of_the_checkpoints_of_lowest_perplexity(tmp_path):
    for step, perplexity, seed in ((10, 5.0, 0), (20, 3.0, 1), (30, 4.0, 2), (40, None, 3)):
        leave(tmp_path, step, perplexity, seed)
    chosen = best_checkpoints(tmp_path, 2)
    assert [path.name for path in chosen] == ["checkpoint-20", "checkpoint-30"]
    assert [path.name for path in last_checkpoints(tmp_path, 2)] == ["checkpoint-30", "checkpoint-40"]
    assert [path.name for path in best_checkpoints(tmp_path, 1, greater_is_better=True)] == ["checkpoint-10"]
    model = make_pair_model("marian", 7)
    load_mean(model, chosen)
    one, other = (load_file(path / "model.safetensors") for path in chosen)
    state = model.state_dict()
    for name, tensor in one.items():
        torch.testing.assert_close(state[name], (tensor + other[name]) / 2)
    assert model.get_output_embeddings().weight is model.get_decoder().embed_tokens.weight


def test_the_best_checkpoints_and_the_newest_are_kept(tmp_path):
    args = TrainingArguments(str(tmp_path), metric_for_best_model="perplexity", greater_is_better=False)
    state, kept = TrainerState(is_world_process_zero=True), []
    (tmp_path / "checkpoint-5").mkdir()  # of which kill -9 has left no state
    for step, perplexity in ((10, 5.0), (20, 3.0), (30, 4.0), (40, 6.0), (50, 2.0)):
        leave(tmp_path, step, perplexity, 0)
        KeepBest(2).on_save(args, state, TrainerControl())
        kept.append({int(path.name.split("-")[1]) for path in tmp_path.glob("checkpoint-*")})
    assert kept == [{10}, {10, 20}, {20, 30}, {20, 30, 40}, {20, 50}]


def test_a_new_checkpoint_stays_beside_better_ones_of_an_earlier_run(tmp_path):
    args, state = TrainingArguments(str(tmp_path), metric_for_best_model="perplexity"), TrainerState(global_step=2)
    for step, perplexity in ((8, 1.0), (2, 5.0)):
        leave(tmp_path, step, perplexity, 0)
    KeepBest(1).on_save(args, state, TrainerControl())
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {"checkpoint-8", "checkpoint-2"}


def test_a_checkpoint_of_fewer_processes_is_whole_and_one_that_was_broken_off_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for step in (10, 20):
        leave(tmp_path, step, 5.0, 0)
    assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-20")
    for step, ranks in ((10, "01"), (20, "0")):
        for rank in ranks:
            (tmp_path / f"checkpoint-{step}" / f"rng_state_{rank}.pth").touch()
    assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")


def test_too_few_checkpoints_and_those_of_another_model(tmp_path, caplog):
    with pytest.raises(ValueError, match="0 checkpoints for the mean of 2"):
        best_checkpoints(tmp_path, 2)
    leave(tmp_path, 10, 5.0, 0)
    assert best_checkpoints(tmp_path, 2) == last_checkpoints(tmp_path, 2) == [tmp_path / "checkpoint-10"]
    assert caplog.text.count("the mean is of these, not of 2") == 2
    with pytest.raises(ValueError, match="of another model"):
        load_mean(make_pair_model("marian", ngram_size=2), best_checkpoints(tmp_path, 1))


@pytest.mark.parametrize("kind", [TargetTrainer, CosineRegularizedTrainer])
@pytest.mark.parametrize("before", [True, False])
def test_use_cache_is_saved_as_it_was_before_the_training(kind, before, tmp_path):
    model, ids = make_backbone("llama"), [[1, 2, 3, 4]] * 8
    model.config.use_cache = before
    args = TrainingArguments(str(tmp_path), **{**SHORT, "max_steps": 1, "save_strategy": "steps"})
    trainer = kind(model, args, train_dataset=Dataset.from_dict({"input_ids": ids, "labels": ids}))
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    for folder in (tmp_path / "checkpoint-1", tmp_path / "model"):
        assert AutoConfig.from_pretrained(folder).use_cache is before
