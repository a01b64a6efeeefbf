"""Trainers of encoder-decoder models: with heads, and without; figures by hand."""

import copy

import pytest
import torch
from datasets import Dataset
from torch.nn import functional as F
from transformers import DataCollatorForSeq2Seq

from hf_targets import (
    MultiTokenForSeq2SeqLM,
    MultiTokenSeq2SeqTrainer,
    MultiTokenSeq2SeqTrainingArguments,
    MultiTokenTrainer,
    encode_pairs,
    train_joint_bpe,
    translate,
    translation_scores,
)
from tests.tiny_seq2seq import make_pair_backbone, make_pair_model
from tests.trainer_runs import run_processes

TEXTS = ["a b c", "b c", "c a b a c", "a", "b a", "c c c b", "b b a", "a c a c a c a"]
TOKENIZER = train_joint_bpe(TEXTS, 300)


def rows(count=8):
    texts = [TEXTS[number % len(TEXTS)] for number in range(count)]
    return encode_pairs(Dataset.from_dict({"source": texts, "target": [text[::-1] for text in texts]}), TOKENIZER)


def make(family="marian", *, heads=True, **config):
    model = make_pair_model(family, **config) if heads else make_pair_backbone(family)
    model.resize_token_embeddings(len(TOKENIZER))
    return model


def arguments(folder, **given):
    options = {"report_to": "none", "use_cpu": True, "max_steps": 3, "logging_steps": 1, "disable_tqdm": True}
    options |= {"per_device_train_batch_size": 4, "learning_rate": 1e-3, "save_strategy": "no"}
    return MultiTokenSeq2SeqTrainingArguments(output_dir=str(folder), **{**options, **given})


def trainer_of(model, folder, kind=MultiTokenSeq2SeqTrainer, data=None, **given):
    data = rows() if data is None else data
    options = {"train_dataset": data, "eval_dataset": rows(5), "processing_class": TOKENIZER}
    return kind(model=model, args=arguments(folder, **given), **options)


def nlls_by_hand(model, weight=None):
    total, count = 0.0, 0
    for row in rows(5):
        batch = {name: torch.tensor([ids]) for name, ids in row.items()}
        settings = {} if weight is None else {"ensemble_weight": weight}
        logits = model(**batch, **settings).logits
        total += F.cross_entropy(logits[0], batch["labels"][0], reduction="sum").item()
        count += batch["labels"].numel()
    return total / count


@pytest.mark.parametrize("tokens", [None, 64])
def test_an_evaluation_reports_the_perplexity_of_every_weight(tokens, tmp_path):
    model = make()
    trainer = trainer_of(model, tmp_path, tokens_per_batch=tokens, ensemble_weights=[0.0, 0.3])
    metrics = trainer.evaluate()
    for weight in (0.0, 0.3):
        expected = torch.tensor(nlls_by_hand(model.eval(), weight)).exp().item()
        assert metrics[f"eval_perplexity_{weight:g}"] == pytest.approx(expected, rel=1e-4)
    plain = make(heads=False)
    expected = torch.tensor(nlls_by_hand(plain)).exp().item()
    assert trainer_of(plain, tmp_path).evaluate()["eval_perplexity"] == pytest.approx(expected, rel=1e-4)


class Counts(MultiTokenSeq2SeqTrainer):
    steps = 0

    def compute_loss(self, *args, **kwargs):
        Counts.steps += 1
        return super().compute_loss(*args, **kwargs)


def test_new_heads_on_a_trained_model_learn_alone_first_by_the_loss_of_a_class_of_ones_own(tmp_path):
    make(heads=False).save_pretrained(tmp_path / "base")
    model = MultiTokenForSeq2SeqLM.from_base(tmp_path / "base", ngram_size=3)
    trainer = trainer_of(model, tmp_path, Counts)
    backbone = copy.deepcopy(model.backbone.state_dict())
    trainer._train_heads_alone(trainer._head_warmup_steps)
    assert all(torch.equal(value, backbone[name]) for name, value in model.backbone.state_dict().items())
    assert not model.heads.are_new and Counts.steps == 3
    trainer.train()
    assert any(not torch.equal(value, backbone[name]) for name, value in model.backbone.state_dict().items())


def test_batches_have_at_most_so_many_tokens_and_every_pair_once(tmp_path):
    data = rows(30)
    trainer = trainer_of(make(), tmp_path, data=data, tokens_per_batch=48)
    seen = []
    for batch in trainer.get_train_dataloader():
        assert batch["input_ids"].numel() <= 48 and batch["labels"].numel() <= 48
        seen += [tuple(row[row != TOKENIZER.pad_token_id].tolist()) for row in batch["input_ids"]]
    assert sorted(seen) == sorted(map(tuple, data["input_ids"]))


def test_with_predict_with_generate_an_evaluation_reports_bleu(tmp_path):
    model = make()
    trainer = trainer_of(model, tmp_path, predict_with_generate=True, generation_num_beams=2, generation_max_length=12)
    metrics = trainer.evaluate()
    texts = translate(model, rows(5), TOKENIZER, num_beams=2, max_new_tokens=11)
    expected = translation_scores(texts, [text[::-1] for text in TEXTS[:5]])
    assert metrics["eval_bleu"] == pytest.approx(expected.bleu)
    assert metrics["eval_chrf"] == pytest.approx(expected.chrf)
    assert trainer.predict(rows(5)).predictions.shape[0] == 5


def test_the_best_checkpoint_has_the_lowest_loss_where_evaluations_generate(tmp_path):
    options = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 1, "save_steps": 1}
    options |= {"predict_with_generate": True, "generation_max_length": 3, "load_best_model_at_end": True}
    trainer = trainer_of(make(), tmp_path, **options)
    trainer.train()
    assert trainer.state.best_metric == min(e["eval_loss"] for e in trainer.state.log_history if "eval_loss" in e)


_TWO = """
import sys
from tests.multitoken.test_seq2seq_trainer import make, rows, trainer_of

generated = {"predict_with_generate": True, "generation_max_length": 6, "per_device_eval_batch_size": 2}
trainer = trainer_of(make(), sys.argv[1], ddp_backend="gloo", **generated)
print(len(trainer.predict(rows(5)).predictions))
"""


def test_two_processes_generate_once_for_each_pair(tmp_path):
    assert [printed.split()[-1] for printed in run_processes(_TWO, tmp_path)] == ["5", "5"]


def test_batches_know_the_epoch_that_begins_or_goes_on(tmp_path):
    trainer = trainer_of(make(), tmp_path, data=rows(30), tokens_per_batch=48, num_train_epochs=2, max_steps=-1)
    trainer.get_train_dataloader()
    (told,) = [one for one in trainer.callback_handler.callbacks if type(one).__name__ == "EpochCallback"]
    for epoch, expected in ((None, 0), (1.0, 1), (1.999999999, 2), (2.4, 2)):
        trainer.state.epoch = epoch
        told.on_train_begin()
        told.on_epoch_begin(trainer.args, trainer.state, trainer.control)
        assert told.sampler.epoch == expected


def test_what_cannot_be_trained_is_told_before_training(tmp_path):
    model = make()
    given = {"model": model, "args": arguments(tmp_path), "train_dataset": rows(), "eval_dataset": rows(2)}
    generating = {"args": arguments(tmp_path, predict_with_generate=True)}
    generating["data_collator"] = DataCollatorForSeq2Seq(TOKENIZER)
    for kind, changes, told in (
        (MultiTokenSeq2SeqTrainer, {}, "processing_class"),
        (MultiTokenSeq2SeqTrainer, generating, "compute_metrics"),
        (MultiTokenTrainer, {}, "train it with MultiTokenSeq2SeqTrainer"),
    ):
        with pytest.raises(ValueError, match=told):
            kind(**{**given, **changes})
