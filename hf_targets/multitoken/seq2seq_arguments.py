"""Training arguments of encoder-decoder models, with heads or without."""

from dataclasses import dataclass

from transformers import Seq2SeqTrainingArguments

from hf_targets.multitoken.arguments import MultiTokenTrainingArguments
from hf_targets.training.arguments import TokenBatchArguments


@dataclass
class MultiTokenSeq2SeqTrainingArguments(TokenBatchArguments, MultiTokenTrainingArguments, Seq2SeqTrainingArguments):
    """Arguments of `MultiTokenSeq2SeqTrainer`: those of `MultiTokenTrainer` and of `Seq2SeqTrainer`, and batches."""
