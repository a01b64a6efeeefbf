"""Perplexities of blocks against a loop over texts."""

import math

import pytest
import torch
from datasets import Dataset
from torch.nn.functional import cross_entropy

from hf_targets import SemiAutoregressiveTrainer, TargetTrainingArguments
from hf_targets.maths.losses import IGNORED
from tests.semi_autoregressive.models import KINDS, make_block_model
from tests.tiny_backbones import make_backbone
from tests.trainer_case import padded_rows
from tests.trainer_runs import SHORT


def make_trainer(folder, model=None, rows=None, **arguments):
    return SemiAutoregressiveTrainer(
        model=make_block_model() if model is None else model,
        args=TargetTrainingArguments(output_dir=str(folder), **{**SHORT, **arguments}),
        train_dataset=padded_rows(16),
        eval_dataset=padded_rows(7) if rows is None else rows,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_reports_the_perplexity_of_each_word_and_their_mean(kind, tmp_path):
    model, rows = make_block_model(kind), padded_rows(7)
    found = make_trainer(tmp_path, model, rows, per_device_eval_batch_size=3).evaluate()
    expected = []
    for n in (1, 2, 3):
        nlls = []
        for row in rows:
            length = sum(row["attention_mask"])
            ids, labels = torch.tensor([row["input_ids"][:length]]), row["labels"]
            block = model(ids, output_block_logits=True).block_logits[0]
            nlls += [
                cross_entropy(block[position, n - 1], torch.tensor(labels[position + n])).item()
                for position in range(length - n)
                if labels[position + n] != IGNORED
            ]
        expected.append(math.exp(sum(nlls) / len(nlls)))
        assert found[f"eval_perplexity_{n}"] == pytest.approx(expected[-1], rel=1e-5)
        if n == 1:
            assert found["eval_word_perplexity"] == pytest.approx(math.exp(sum(nlls) / 28), rel=1e-4)
    assert found["eval_perplexity"] == pytest.approx(sum(expected) / 3, rel=1e-5)


def test_texts_too_short_for_a_block_are_told(tmp_path):
    rows = Dataset.from_dict({name: [[3, 4, 5]] for name in ("input_ids", "labels")} | {"attention_mask": [[1] * 3]})
    with pytest.raises(ValueError, match="4 tokens or more"):
        make_trainer(tmp_path, rows=rows).evaluate()


def test_what_it_does_not_train_is_refused(tmp_path):
    with pytest.raises(ValueError, match="GPT2LMHeadModel"):
        make_trainer(tmp_path, make_backbone("gpt2"))
    with pytest.raises(ValueError, match="label_smoothing_factor"):
        make_trainer(tmp_path, label_smoothing_factor=0.1)
