"""The models with phrases that owe what every model owes, and their Trainer."""

from typing import Any

from hf_targets import DynamicVocabTrainer, DynamicVocabTrainingArguments, TokenNgrams
from tests.causal_case import causal_case
from tests.tiny_models import make_collator
from tests.trainer_case import TrainerCase, padded_rows

CASES = {
    f"phrases-{family}": causal_case(family, "phrases", stands_for={"gpt2": "class", "llama": "kind"}.get(family))
    for family in ("gpt2", "llama", "opt", "phi", "reformer")
}


def _phrase_collator() -> Any:
    collator = make_collator()
    collator.miner = TokenNgrams(3, 3)
    return collator


TRAINERS = {
    "phrases": TrainerCase(
        model=CASES["phrases-gpt2"],
        trainer=DynamicVocabTrainer,
        arguments=DynamicVocabTrainingArguments,
        rows=padded_rows,
        evaluated=padded_rows,
        metrics=("perplexity", "best_path_perplexity"),
        collator=_phrase_collator,
        weights={"kl_loss_weight": 0.5, "token_loss_weight": 2.0},
        new_part_rate="encoder_learning_rate",
        lacks={"the steps of its rows": "the phrases of a row of a stream are chosen by its position"},
    ),
}
