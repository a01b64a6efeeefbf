"""Bags of words as targets of causal models and of translation."""

import copy

import pytest
import torch
from transformers import DataCollatorForSeq2Seq, default_data_collator

from hf_targets import MultiTokenTrainingArguments
from hf_targets.maths.losses import bag_of_words_losses
from lab.bag_of_words import BagOfWordsSettings, BagOfWordsTrainer, CausalBagOfWordsTrainer
from tests.multitoken.test_seq2seq_trainer import TOKENIZER, arguments, make, rows
from tests.multitoken.test_trainer import blocks
from tests.tiny_models import make_backbone
from tests.trainer_runs import SHORT


def test_bags_of_words_of_a_causal_model_hold_the_tokens_that_follow(tmp_path):
    data, args = blocks(4).remove_columns("num_words"), MultiTokenTrainingArguments(output_dir=str(tmp_path), **SHORT)
    model, bag = make_backbone("gpt2").train(), BagOfWordsSettings(first_weight=0.2)
    trainer = CausalBagOfWordsTrainer(model, args, bag=bag, train_dataset=data)
    batch = default_data_collator(list(data))
    output, targets = model(**batch), batch["labels"][:, 1:]
    count = (targets != -100).sum()
    bags = bag_of_words_losses(output.logits[:, :-1], targets).sum()
    found = trainer.compute_loss(model, dict(batch), num_items_in_batch=count)
    torch.testing.assert_close(found, output.loss + 0.2 * bags / count)


def test_translation_trains_on_bags_with_the_weight_of_the_epoch(tmp_path):
    model = make(heads=False).train()
    batch = dict(DataCollatorForSeq2Seq(TOKENIZER)([dict(row) for row in rows(4)]))
    bag = BagOfWordsSettings(first_weight=0.2, rise=0.3)
    given = {"args": arguments(tmp_path), "bag": bag, "processing_class": TOKENIZER}
    given |= {"train_dataset": rows(), "eval_dataset": rows(5)}
    trainer = BagOfWordsTrainer(model=model, **given)
    count = int((batch["labels"] != -100).sum())
    output = model(**batch)
    sums = bag_of_words_losses(output.logits, batch["labels"]).sum()
    for epoch, weight in ((None, 0.2), (0.9, 0.2), (1.0, 0.5), (2.5, 0.8)):
        trainer.state.epoch = epoch
        found = trainer.compute_loss(model, copy.copy(batch), num_items_in_batch=torch.tensor(count))
        torch.testing.assert_close(found, output.loss + weight * sums / count)
    evaluated = trainer.evaluate()
    assert evaluated["eval_perplexity"] > 1
    with pytest.raises(ValueError, match="a baseline without heads"):
        BagOfWordsTrainer(model=make(), **given)
