"""The baseline that also predicts the bag of words of each target: a plain model, trained with one term more."""

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from hf_targets import MultiTokenSeq2SeqTrainer, MultiTokenTrainer
from hf_targets.backbones.alignment import next_targets
from hf_targets.maths.losses import bag_of_words_losses, target_count


@dataclass
class BagOfWordsSettings:
    """The weight of the bag of words, and what is in it."""

    first_weight: float = field(default=0.1, metadata={"help": "k, the weight in the first epoch."})
    rise: float = field(default=0.1, metadata={"help": "Alpha, by how much the weight rises each epoch."})
    most_weight: float = field(default=1.0, metadata={"help": "Lambda, the highest weight."})


class CausalBagOfWordsTrainer(MultiTokenTrainer):
    """Trainer of a plain causal model with the loss l_1 + lambda_i l_2, both divided by the number of targets.

    l_1 is the cross-entropy, l_2 that of the bags of words (`bag_of_words_losses`), and lambda_i rises with the epoch.
    The model is an ordinary model of Transformers, and is evaluated and saved as one.

    Departs: the paper's bags are those of translations; here a bag holds the tokens of a row of text.
    Source: Ma et al. 2018, "Bag-of-Words as Target for Neural Machine Translation", on the Transformer as the earlier
        version of Heo et al. has it (its table 3).
    """

    def __init__(self, *args: Any, bag: BagOfWordsSettings, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.has_heads:
            raise ValueError("bags of words are a baseline without heads; give the model's .backbone")
        self.bag = bag

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Compute the loss as the baseline without bags does, and in training add that of the bags."""
        labels = inputs["labels"]
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if model.training:
            risen = self.bag.first_weight + self.bag.rise * int(self.state.epoch or 0.0)
            weight = min(self.bag.most_weight, risen)
            targets = next_targets(labels, inputs.get("attention_mask")) if self.shifts_labels else labels
            bags = bag_of_words_losses(outputs.logits, targets).sum()
            count = target_count(labels, num_items_in_batch)
            loss = loss + weight * bags / count * self._loss_scale(num_items_in_batch)
        return (loss, outputs) if return_outputs else loss


class BagOfWordsTrainer(CausalBagOfWordsTrainer, MultiTokenSeq2SeqTrainer):
    """The same for a plain encoder-decoder model: a bag holds the words of a translation."""
