"""Masking of words, and the trainer of masked models, with heads and without."""

import pytest
import torch
from datasets import Dataset
from torch.nn import functional as F

from hf_targets import MaskingCollator, MultiTokenMaskedTrainer, MultiTokenMaskedTrainingArguments, word_level_tokenizer
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
    evaluated = arguments.pop("eval_dataset", None)
    given = {"processing_class": TOKENIZER} | arguments.pop("given", {})
    return MultiTokenMaskedTrainer(
        make_masked_model() if model is None else model,
        MultiTokenMaskedTrainingArguments(str(folder), report_to="none", **{**SHORT, **arguments}),
        train_dataset=texts(64) if rows is None else rows,
        eval_dataset=texts(9) if evaluated is None else evaluated,
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


def test_exact_counts_of_each_row_are_masked_special_tokens_too():
    rows = [{"input_ids": [TOKENIZER.mask_token_id] * 40}] + [{"input_ids": [number] * 40} for number in range(1, 200)]
    batch = MaskingCollator(TOKENIZER, 0.25, exact=True)(rows)
    chosen = batch["labels"] != IGNORED
    assert (chosen.sum(dim=1) == 10).all()
    others = batch["input_ids"][1:]
    assert ((others == MASK).sum(dim=1) >= 8).all() and ((others == batch["labels"][1:]).sum(dim=1) >= 1).all()
    changed = chosen[1:] & (others != batch["labels"][1:])
    assert (changed.sum(dim=1) <= 9).all() and (changed.sum(dim=1) == 9).float().mean() > 0.9
    assert len({tuple(row) for row in chosen.tolist()}) > 190
    padded = [{"input_ids": [9] * 20 + [0] * 100, "attention_mask": [1] * 20 + [0] * 100}]
    assert (MaskingCollator(TOKENIZER, 0.25, exact=True)(padded)["labels"] != IGNORED).nonzero()[:, 1].max() < 20
    other = MaskingCollator(TOKENIZER, 0.25, exact=True, seed=1)(rows)
    assert not torch.equal(other["labels"], batch["labels"])


def perplexity_of(model, rows):
    """Return the perplexity of the tokens of rows that an evaluation masks, 30% of them."""
    batch = MaskingCollator(TOKENIZER, 0.3, seed=0)([dict(row) for row in rows])
    return F.cross_entropy(model(batch["input_ids"]).logits.transpose(1, 2), batch["labels"]).exp().item()


@pytest.mark.parametrize("make", [make_masked_model, make_masked_backbone])
def test_an_evaluation_masks_the_same_words_for_every_model_and_seed(make, tmp_path):
    model = make()
    expected = perplexity_of(model, texts(9))
    for seed in (0, 7):
        trainer = make_trainer(tmp_path, model, mask_share=0.3, seed=seed, per_device_eval_batch_size=4)
        assert trainer.evaluate()["eval_perplexity"] == pytest.approx(expected, rel=1e-5)
    assert trainer.predict(texts(9)).metrics["test_perplexity"] == pytest.approx(expected, rel=1e-5)


def test_each_evaluation_text_is_masked_once_also_by_workers_in_streams_and_by_a_collator_that_is_given(tmp_path):
    data = {"a": texts(9), "b": Dataset.from_dict({"input_ids": texts(20)["input_ids"][9:]})}
    model = make_masked_model()
    found = {name: perplexity_of(model, rows) for name, rows in data.items()}
    assert found["a"] != pytest.approx(found["b"], rel=1e-3)
    workers = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    collator = {"data_collator": MaskingCollator(TOKENIZER, 0.3, seed=5), "processing_class": None}
    for options in ({"mask_share": 0.3, **workers}, {"given": collator}):
        trainer = make_trainer(tmp_path, model, eval_dataset=data, **options)
        for _ in range(2):
            metrics = trainer.evaluate()
            for name, value in found.items():
                assert metrics[f"eval_{name}_perplexity"] == pytest.approx(value, rel=1e-5)
    stream = data["a"].to_iterable_dataset()
    for seed in (0, 1):
        trainer = make_trainer(tmp_path, model, eval_dataset=stream, mask_share=0.3, seed=seed)
        assert trainer.evaluate()["eval_perplexity"] == pytest.approx(found["a"], rel=1e-5)


@pytest.mark.parametrize("workers", [{}, {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}])
def test_each_pass_over_a_stream_masks_other_tokens(workers, tmp_path):
    seen = []
    trainer = make_trainer(tmp_path, rows=texts(8).to_iterable_dataset(), max_steps=6, **workers)
    trainer.model.register_forward_pre_hook(lambda _, args, given: seen.append(given["labels"]), with_kwargs=True)
    trainer.train()
    passes = [torch.cat(seen[i : i + 2]) for i in (0, 2, 4)]
    assert not torch.equal(passes[0], passes[1]) and not torch.equal(passes[1], passes[2])
    expected = MaskingCollator(TOKENIZER, 0.15, seed=42)
    for epoch, labels in enumerate(passes):
        expected.set_epoch(epoch)
        assert torch.equal(labels, expected([{"input_ids": ids} for ids in texts(8)["input_ids"]])["labels"])


def test_labels_at_padding_are_no_targets_in_training_and_evaluation(tmp_path):
    rows = {"input_ids": [[3, MASK, 5, 0], [MASK, 6, 0, 0]], "attention_mask": [[1, 1, 1, 0], [1, 1, 0, 0]]}
    labels = [[IGNORED, 4, IGNORED, IGNORED], [7, IGNORED, IGNORED, IGNORED]]
    at_padding = [[*row[:3], 9] for row in labels]
    found = []
    for given in (labels, at_padding):
        data = Dataset.from_dict({**rows, "labels": given})
        trainer = make_trainer(tmp_path, make_masked_model(ngram_size=1), rows=data, max_steps=1)
        trainer.train()
        found.append((weights(trainer.model), losses(trainer)[0]["loss"], trainer.evaluate(data)["eval_perplexity"]))
    assert found[0][1:] == found[1][1:]
    assert_same(found[0][0], found[1][0], rtol=0, atol=0)


def test_what_cannot_be_trained_is_told(tmp_path):
    seen = Dataset.from_dict({"input_ids": [[1, 2]], "labels": [[1, 2]]})
    for wrong, told in (
        ({"given": {"processing_class": None}}, "processing_class"),
        ({"given": {"processing_class": word_level_tokenizer(["a b\n"])}}, "mask token"),
        ({"rows": seen}, "no token of the train data is masked"),
        ({"rows": Dataset.from_dict({"text": ["a"]})}, "lacks input_ids"),
        ({"mask_share": 0.0}, "mask_share"),
        ({"ensemble_weights": [0.1]}, "ensemble_weights"),
        ({"head_warmup_steps": 3}, "head_warmup_steps"),
    ):
        with pytest.raises(ValueError, match=told):
            make_trainer(tmp_path, **wrong)
    with pytest.raises(ValueError, match="no token of the test data is masked"):
        make_trainer(tmp_path).predict(seen)
    with pytest.raises(ValueError, match="at least one target"):
        make_trainer(tmp_path).evaluate(Dataset.from_dict({"input_ids": [[1, 2, 3]], "labels": [[IGNORED] * 3]}))
