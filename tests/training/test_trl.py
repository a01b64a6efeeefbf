"""Our models under TRL's trainers, which compute their losses from hidden states and the output matrix themselves."""

import pytest
import torch
from datasets import Dataset
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

from tests.tiny_models import WORDS, make_any, make_backbone, new_part
from tests.trainer_runs import weights

kinds = pytest.mark.parametrize(
    ("kind", "trainer"), [("difference", "MultiTokenTrainer"), ("phrases", "DynamicVocabTrainer")]
)
SHORT = {"max_steps": 2, "use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True, "logging_steps": 1}
TEXTS = Dataset.from_dict({"text": ["w1 w2 w3 w4 w5", "w2 w3 w7 w8"] * 4})
PAIRS = Dataset.from_dict({"prompt": ["w1 w2"] * 8, "chosen": ["w3 w4"] * 8, "rejected": ["w8"] * 8})


@kinds
def test_supervised_fine_tuning_is_refused_and_the_right_trainer_named(kind, trainer, tmp_path):
    model, args = make_any("llama", kind), SFTConfig(str(tmp_path / "out"), **SHORT)
    for part in (model, WORDS):
        part.save_pretrained(tmp_path / "model")
    name = "phrase_encoder" if kind == "phrases" else "heads"
    for given in (model, str(tmp_path / "model")):
        with pytest.raises(ValueError, match=f"{name}; use (MultiTokenSFT|DynamicVocab)Trainer of"):
            SFTTrainer(given, args, train_dataset=TEXTS, processing_class=WORDS)


@kinds
def test_preferences_train_the_backbone_as_they_train_it_alone(kind, trainer, tmp_path, caplog):
    logged, trained = [], []
    for make in (lambda: make_backbone("llama"), lambda: make_any("llama", kind)):
        model, args = make(), DPOConfig(str(tmp_path), **SHORT, per_device_train_batch_size=2)
        tuning = DPOTrainer(model, make(), args, train_dataset=PAIRS, processing_class=WORDS)
        before = None if model.__class__.__name__.startswith("Llama") else weights(new_part(model))
        tuning.train()
        logged.append([entry["loss"] for entry in tuning.state.log_history if "loss" in entry])
        trained.append(weights(model))
    assert logged[0] == pytest.approx(logged[1], rel=1e-6) and logged[0][1] < logged[0][0]
    for name, tensor in trained[0].items():
        torch.testing.assert_close(trained[1][f"backbone.{name}"], tensor)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(new_part(model)).items())
    assert f"train them again with {trainer}" in caplog.text


@kinds
def test_preferences_make_their_own_reference_of_a_saved_model(kind, trainer, tmp_path):
    make_any("llama", kind).save_pretrained(tmp_path / "model")
    WORDS.save_pretrained(tmp_path / "model")
    args = DPOConfig(str(tmp_path / "out"), **{**SHORT, "max_steps": 1}, per_device_train_batch_size=2)
    tuning = DPOTrainer(str(tmp_path / "model"), args=args, train_dataset=PAIRS)
    tuning.train()
    assert [entry["step"] for entry in tuning.state.log_history if "loss" in entry] == [1]


@kinds
def test_rewards_need_a_classifier(kind, trainer, tmp_path):
    model, args = make_any("llama", kind), RewardConfig(str(tmp_path / "out"), **SHORT)
    model.config.num_labels = 1
    model.save_pretrained(tmp_path / "model")
    for given, told in ((str(tmp_path / "model"), "AutoModelForSequenceClassification"), (model, "backbone")):
        with pytest.raises(ValueError, match=told):
            RewardTrainer(given, args=args, train_dataset=PAIRS.remove_columns("prompt"), processing_class=WORDS)
