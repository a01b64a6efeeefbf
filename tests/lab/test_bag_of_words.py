"""Bags of words as targets of a causal model."""

import torch
from transformers import default_data_collator

from hf_targets import MultiTokenTrainingArguments
from hf_targets.maths.losses import bag_of_words_losses
from lab.bag_of_words import BagOfWordsSettings, CausalBagOfWordsTrainer
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
