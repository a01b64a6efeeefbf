"""What a training divides its loss by, beside a plain model."""

import pytest
from datasets import Dataset

from hf_targets import MultiTokenForCausalLM, MultiTokenTrainer, MultiTokenTrainingArguments
from tests.tiny_models import make_backbone, token_ids


@pytest.mark.parametrize("family", ["gpt_neo", "llama"])
def test_a_plain_model_logs_the_loss_that_heads_log_of_the_next_token(family, tmp_path):
    rows = Dataset.from_list([{"input_ids": row, "labels": row} for row in token_ids(4, 8).tolist()])
    losses = []
    for base in (make_backbone(family), MultiTokenForCausalLM.from_base(make_backbone(family), ngram_size=2)):
        args = MultiTokenTrainingArguments(
            str(tmp_path), max_steps=1, per_device_train_batch_size=4, logging_steps=1, report_to="none", use_cpu=True
        )
        plain = not isinstance(base, MultiTokenForCausalLM)
        trainer = MultiTokenTrainer(base, args.for_baseline() if plain else args, train_dataset=rows)
        trainer.train()
        entry = next(entry for entry in trainer.state.log_history if "loss" in entry)
        losses.append(entry["loss" if plain else "loss_next_token"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
