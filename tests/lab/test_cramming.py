"""Batches grow and rates rise and fall as in the published program of CrammedBERT."""

import pytest
from train_masked_lm import CrammingTrainer

from hf_targets import MultiTokenMaskedTrainingArguments
from tests.multitoken.test_masked_trainer import TOKENIZER, texts
from tests.tiny_masked import make_masked_model
from tests.trainer_runs import SHORT


def test_the_rate_rises_from_a_quarter_and_falls_to_0_and_batches_grow_to_all_their_rows(tmp_path, monkeypatch):
    given = {**SHORT, "max_steps": 20, "per_device_train_batch_size": 8, "learning_rate": 1.0, "max_grad_norm": 1e-6}
    args = MultiTokenMaskedTrainingArguments(str(tmp_path), report_to="none", **given)
    trainer = CrammingTrainer(make_masked_model(), args, processing_class=TOKENIZER, train_dataset=texts(200))
    sizes, rates, step = [], [], trainer.training_step

    def recorded(model, inputs, *others):
        sizes.append(len(inputs["input_ids"]))
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        return step(model, inputs, *others)

    monkeypatch.setattr(trainer, "training_step", recorded)
    trainer.train()
    assert rates == pytest.approx([min(0.25 + n / 20, 4 - n / 5) for n in range(20)])
    assert max(rates) == rates[15] == 1 and trainer.lr_scheduler.get_last_lr()[0] == 0
    assert sizes == sorted(sizes) and (sizes[0], sizes[5], sizes[11]) == (1, 4, 8) and set(sizes[11:]) == {8}
