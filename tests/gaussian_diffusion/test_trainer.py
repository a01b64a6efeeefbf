import pytest
import torch
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

from hf_targets import (
    GaussianDiffusionTrainer,
    GaussianDiffusionTrainingArguments,
    encode_pairs,
    load_pairs,
    train_joint_bpe,
)
from tests.gaussian_diffusion.models import make_difformer
from tests.tiny_models import make_backbone


@pytest.fixture(scope="module")
def data():
    pairs = load_pairs("documentation:reversed", source_lang="en", target_lang="reversed", max_train_pairs=60)
    short = {split: part.filter(lambda row: len(row["source"]) < 60) for split, part in pairs.items()}
    tokenizer = train_joint_bpe(short["train"], 300)
    return tokenizer, {split: encode_pairs(part.take(min(24, len(part))), tokenizer) for split, part in short.items()}


def trainer_of(data, folder, **settings) -> GaussianDiffusionTrainer:
    tokenizer, corpus = data
    args = GaussianDiffusionTrainingArguments(
        output_dir=str(folder),
        **{
            "tokens_per_batch": 256,
            "max_steps": 6,
            "ema_decay": None,
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
            "learning_rate": 3e-3,
            "logging_steps": 2,
            **settings,
        },
    )
    model = make_difformer(vocab_size=300, max_position_embeddings=80, initializer_range=0.05, dropout=0.1)
    sets = {"train_dataset": corpus["train"], "eval_dataset": corpus["validation"]}
    return GaussianDiffusionTrainer(model, args, processing_class=tokenizer, **sets)


def test_training_lowers_each_part_of_the_loss_and_logs_it(data, tmp_path):
    trainer = trainer_of(data, tmp_path, max_steps=30)
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_loss"] < before["eval_loss"] and after["eval_words"] < before["eval_words"]
    expected = after["eval_diffusion"] + after["eval_words"] + 0.1 * after["eval_length"]
    assert after["eval_loss"] == pytest.approx(expected)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    for entry in logged:
        total = entry["loss_diffusion"] + entry["loss_words"] + 0.1 * entry["loss_length"]
        assert entry["loss"] == pytest.approx(total, rel=1e-4)


def test_evaluations_are_the_same_whenever_they_are_made(data, tmp_path):
    trainer = trainer_of(data, tmp_path)
    first = trainer.evaluate()
    torch.randn(3)
    again = trainer.evaluate()
    assert first["eval_loss"] == again["eval_loss"]
    other = trainer_of(data, tmp_path, evaluation_seed=1).evaluate()
    assert other["eval_loss"] != first["eval_loss"]


def test_what_cannot_be_trained_is_told(data, tmp_path):
    args = GaussianDiffusionTrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    with pytest.raises(ValueError, match="GPT2LMHeadModel"):
        GaussianDiffusionTrainer(make_backbone("gpt2"), args, processing_class=data[0])
    with pytest.raises(ValueError, match="processing_class"):
        GaussianDiffusionTrainer(make_difformer(), args)
    for field, value in (("label_smoothing_factor", 0.1), ("evaluation_seed", -1)):
        with pytest.raises(ValueError, match=field):
            GaussianDiffusionTrainingArguments(output_dir=str(tmp_path), **{field: value})


def test_the_trainer_of_transformers_writes_texts_in_its_evaluations(data, tmp_path):
    tokenizer, corpus = data
    args = Seq2SeqTrainingArguments(str(tmp_path), predict_with_generate=True, use_cpu=True, report_to="none")
    seen = {"compute_metrics": lambda found: {"texts": len(found.predictions)}, "processing_class": tokenizer}
    model = make_difformer(vocab_size=300, max_position_embeddings=80)
    trainer = Seq2SeqTrainer(model, args, data_collator=DataCollatorForSeq2Seq(tokenizer), **seen)
    assert trainer.evaluate(corpus["validation"])["eval_texts"] == len(corpus["validation"])
    with pytest.raises(ValueError, match="in place of num_beams give num_lengths and num_noises"):
        trainer.evaluate(corpus["validation"], num_beams=2)
