"""Training arguments of encoder-decoder models, with heads or without."""

from dataclasses import dataclass, field

from transformers import Seq2SeqTrainingArguments

from hf_targets.multitoken.arguments import MultiTokenTrainingArguments


@dataclass
class MultiTokenSeq2SeqTrainingArguments(MultiTokenTrainingArguments, Seq2SeqTrainingArguments):
    """Arguments of `MultiTokenSeq2SeqTrainer`: those of `MultiTokenTrainer` and of `Seq2SeqTrainer`, and these."""

    tokens_per_batch: int | None = field(
        default=None,
        metadata={
            "help": "Most tokens of a batch of one process, padding included, on the longer side of its pairs, which "
            "are of similar length. None: batches of per_device_train_batch_size pairs."
        },
    )

    def __post_init__(self) -> None:
        if self.tokens_per_batch is not None and self.tokens_per_batch < 1:
            raise ValueError(f"tokens_per_batch must be 1 or more, got {self.tokens_per_batch}; None counts pairs")
        super().__post_init__()
