"""Masking of words, and the trainer of masked models, with heads and without."""

import math

import pytest
import torch
from datasets import Dataset
from torch.nn import functional as F

from hf_targets import (
    MaskingCollator,
    MultiTokenMaskedTrainer,
    MultiTokenMaskedTrainingArguments,
    mask_rows,
    word_level_tokenizer,
)
from hf_targets.maths.losses import IGNORED
from tests.tiny_backbones import VOCAB, token_ids
from tests.tiny_masked import MASK, make_masked_backbone, make_masked_model
from tests.trainer_runs import SHORT, assert_same, losses, weights


def make_tokenizer():
    """Return a tokenizer of as many tokens as the models have, the mask the last of them."""
    words = word_level_tokenizer([" ".join(f"w{number}" for number in range(VOCAB - 4)) + "\n"])
    words.add_special_tokens({"mask_token": "<mask>"})
    assert words.mask_token_id == MASK
    return words


TOKENIZER = make_tokenizer()


def texts(num_rows: int, length: int = 12) -> Dataset:
    return Dataset.from_dict({"input_ids": (token_ids(num_rows, length) % 7 + 1).tolist()})


def make_trainer(folder, model=None, **arguments):
    rows = arguments.pop("rows", None)
    given = {"processing_class": TOKENIZER} | arguments.pop("given", {})
    return MultiTokenMaskedTrainer(
        make_masked_model() if model is None else model,
        MultiTokenMaskedTrainingArguments(str(folder), report_to="none", **{**SHORT, **arguments}),
        train_dataset=texts(64) if rows is None else rows,
        eval_dataset=texts(9),
        **given,
    )


def test_a_share_of_the_words_is_masked_and_padding_never():
    rows = [{"input_ids": ids} for ids in texts(400)["input_ids"]] + [{"input_ids": [3, 4]}]
    batch = MaskingCollator(TOKENIZER, 0.3, seed=1)(rows)
    chosen = batch["labels"] != IGNORED
    assert chosen[:-1].float().mean().item() == pytest.approx(0.3, abs=0.03)
    assert not chosen[-1, 2:].any() and batch["attention_mask"][-1].tolist() == [1, 1] + [0] * 10
    assert (batch["input_ids"][chosen] == MASK).float().mean().item() == pytest.approx(0.8, abs=0.05)
    truth = torch.tensor([row["input_ids"] for row in rows[:-1]])
    assert torch.equal(batch["labels"][:-1][chosen[:-1]], truth[chosen[:-1]])
    assert torch.equal(batch["input_ids"][:-1][~chosen[:-1]], truth[~chosen[:-1]])
    ready = [{"input_ids": [5, MASK], "labels": [IGNORED, 6]}, {"input_ids": [MASK], "labels": [7]}]
    assert MaskingCollator(TOKENIZER)(ready)["labels"].tolist() == [[IGNORED, 6], [7, IGNORED]]


def test_rows_that_are_masked_once_depend_on_the_seed_alone():
    one, again, other = (mask_rows(texts(20), TOKENIZER, 0.3, seed=seed) for seed in (0, 0, 1))
    assert one["labels"][:] == again["labels"][:] != other["labels"][:]
    for ids, labels, truth in zip(one["input_ids"], one["labels"], texts(20)["input_ids"], strict=True):
        assert [label if label != IGNORED else id_ for id_, label in zip(ids, labels, strict=True)] == truth


@pytest.mark.parametrize("make", [make_masked_model, make_masked_backbone])
def test_an_evaluation_masks_the_same_words_for_every_model_and_seed(make, tmp_path):
    masked = mask_rows(texts(9), TOKENIZER, 0.3, seed=0)
    ids, labels = torch.tensor(masked["input_ids"][:]), torch.tensor(masked["labels"][:])
    model = make()
    expected = F.cross_entropy(model(ids).logits.transpose(1, 2), labels).exp().item()
    for seed in (0, 7):
        trainer = make_trainer(tmp_path, model, mask_share=0.3, seed=seed, per_device_eval_batch_size=4)
        assert trainer.evaluate()["eval_perplexity"] == pytest.approx(expected, rel=1e-5)
    assert trainer.predict(texts(9)).metrics["test_perplexity"] == pytest.approx(expected, rel=1e-5)


def test_training_masks_other_words_in_each_epoch_and_resumes_where_it_was(tmp_path):
    seen = []
    trainer = make_trainer(tmp_path / "whole", rows=texts(8), max_steps=6, save_strategy="steps", save_steps=3)
    trainer.model.register_forward_pre_hook(
        lambda _, args, given: seen.append(given["labels"].clone()), with_kwargs=True
    )
    trainer.train()
    assert len(seen) == 6
    epochs = [torch.cat([labels.sum(dim=1) for labels in seen[i : i + 2]]).sort().values for i in (0, 2, 4)]
    assert not torch.equal(epochs[0], epochs[1]) and not torch.equal(epochs[1], epochs[2])
    again = make_trainer(tmp_path / "again", rows=texts(8), max_steps=6)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert_same(weights(trainer.model), weights(again.model), rtol=0, atol=0)


def test_a_plain_model_learns_in_parts_of_a_step_as_at_once_and_smooths_labels(tmp_path):
    found, rows = [], mask_rows(texts(16), TOKENIZER, 0.3)
    for batch, parts in ((8, 1), (2, 4)):
        sizes = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": parts}
        options = {"max_steps": 2, "label_smoothing_factor": 0.1, "train_sampling_strategy": "sequential"}
        trainer = make_trainer(tmp_path, make_masked_backbone(), rows=rows, **sizes, **options)
        trainer.train()
        found.append(weights(trainer.model))
        first = losses(trainer)[0]["loss"]
    assert_same(*found, rtol=1e-4, atol=1e-5)
    ids, labels = (torch.tensor(rows[name][:8]) for name in ("input_ids", "labels"))
    logits = make_masked_backbone()(ids).logits.transpose(1, 2)
    assert first == pytest.approx(F.cross_entropy(logits, labels, label_smoothing=0.1).item(), rel=1e-5)


def test_heads_lower_the_perplexity_of_what_they_are_trained_on(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=60, mask_share=0.3, learning_rate=5e-3)
    before = trainer.evaluate()["eval_perplexity"]
    trainer.train()
    assert trainer.evaluate()["eval_perplexity"] < 0.5 * before
    assert {"loss_masked_token", "loss_head_1", "loss_head_2"} <= losses(trainer)[0].keys()
    assert all(math.isfinite(entry["loss"]) for entry in losses(trainer))


def test_what_cannot_be_trained_is_told(tmp_path):
    with pytest.raises(ValueError, match="words are masked by the tokenizer's mask token; give processing_class"):
        make_trainer(tmp_path, given={"processing_class": None})
    with pytest.raises(ValueError, match=r"words are masked by a mask token, and this .* has none; add one with"):
        make_trainer(tmp_path, given={"processing_class": word_level_tokenizer(["a b\n"])})
    seen = Dataset.from_dict({"input_ids": [[1, 2]], "labels": [[1, 2]]})
    with pytest.raises(ValueError, match=r"no word of the train data is masked: .* Remove the column labels"):
        make_trainer(tmp_path, rows=seen)
    with pytest.raises(ValueError, match="an evaluation needs at least one target"):
        unlabelled = Dataset.from_dict({"input_ids": [[1, 2]], "labels": [[IGNORED, IGNORED]]})
        make_trainer(tmp_path).evaluate(unlabelled)
    for fields, told in (
        ({"mask_share": 0.0}, r"mask_share must be in \(0, 1\], got 0"),
        ({"mask_share": 1.5}, r"mask_share must be in \(0, 1\], got 1.5"),
        ({"ensemble_weights": [0.1]}, r"ensemble_weights must be \[0.0\], got \[0.1\]"),
        ({"head_warmup_steps": 3}, "head_warmup_steps must be None for masked models, got 3"),
    ):
        with pytest.raises(ValueError, match=told):
            make_trainer(tmp_path, **fields)
