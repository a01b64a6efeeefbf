"""The models with heads that owe what every model owes, and their Trainers."""

from dataclasses import replace

from datasets import Dataset

from hf_targets import (
    MultiTokenMaskedTrainer,
    MultiTokenMaskedTrainingArguments,
    MultiTokenSeq2SeqTrainer,
    MultiTokenSeq2SeqTrainingArguments,
    MultiTokenTrainer,
    MultiTokenTrainingArguments,
)
from hf_targets.maths.losses import IGNORED
from tests.causal_case import causal_case
from tests.multitoken.masked_cases import masked_case
from tests.multitoken.seq2seq_cases import pair_case
from tests.tiny_backbones import FAMILIES
from tests.tiny_masked import MASK
from tests.trainer_case import TrainerCase, padded_rows

CASES = {
    **{
        f"difference-{family}": causal_case(
            family, "difference", stands_for={"gpt2": "class", "reformer": "kind"}.get(family)
        )
        for family in FAMILIES
        if family != "qwen3"  # a Llama with tied matrices, as heads see it
    },
    "embedding-llama": causal_case("llama", "embedding"),
    "separate_output_heads-gpt2": causal_case("gpt2", "separate_output_heads"),
    "separate_output_heads-llama": causal_case("llama", "separate_output_heads", stands_for="kind"),
    # heads that read embeddings, whose width is not that of the output matrix in the last
    "conditional-llama": causal_case("llama", "conditional"),
    "conditional-opt": causal_case("opt", "conditional", stands_for="kind"),
    "difference-marian": pair_case("marian", "difference", stands_for="class"),
    "embedding-bart": pair_case("bart", "embedding", stands_for="kind"),
    "difference-t5": pair_case("t5", "difference"),
    "conditional-mt5": pair_case("mt5", "conditional", stands_for="kind"),  # its output matrix is not tied
    "masked-difference-bert": masked_case("bert", "difference", stands_for="class"),
    "masked-masked_only-roberta": masked_case("roberta", "masked_only"),
    "masked-embedding-distilbert": masked_case("distilbert", "embedding"),
    "masked-masked_only-modernbert": masked_case("modernbert", "masked_only", stands_for="kind"),
    # its output matrix is narrower than its layers
    "masked-difference-electra": masked_case("electra", "difference", stands_for="kind"),
    "masked-masked_only-crammed_bert": masked_case("crammed_bert", "masked_only"),
}


def _rows_with_following_tokens(num_rows: int) -> Dataset:
    """Return padded rows in which about every third word is masked; others have no label."""

    def masked(row: dict[str, list], index: int) -> dict[str, list]:
        chosen = [kept and (place + index) % 3 == 1 for place, kept in enumerate(row["attention_mask"])]
        pairs = list(zip(row["input_ids"], chosen, strict=True))
        return {
            "input_ids": [MASK if hidden else id_ for id_, hidden in pairs],
            "labels": [id_ if hidden else IGNORED for id_, hidden in pairs],
        }

    return padded_rows(num_rows).map(masked, with_indices=True)


_MULTITOKEN = TrainerCase(
    model=CASES["difference-gpt2"],
    trainer=MultiTokenTrainer,
    arguments=MultiTokenTrainingArguments,
    rows=padded_rows,
    evaluated=padded_rows,
    metrics=("perplexity_0", "perplexity_0.3", "word_perplexity_0.3"),
    options={"ensemble_weights": [0.0, 0.3]},
    weights={"loss_weight": 0.6},
    new_part_rate="head_learning_rate",
)
TRAINERS = {
    "multitoken": _MULTITOKEN,
    "translation": replace(
        _MULTITOKEN,
        model=CASES["difference-marian"],
        trainer=MultiTokenSeq2SeqTrainer,
        arguments=MultiTokenSeq2SeqTrainingArguments,
    ),
    "masked": TrainerCase(
        model=CASES["masked-difference-bert"],
        trainer=MultiTokenMaskedTrainer,
        arguments=MultiTokenMaskedTrainingArguments,
        rows=_rows_with_following_tokens,
        evaluated=_rows_with_following_tokens,
        metrics=("perplexity",),
        weights={"loss_weight": 0.6},
        new_part_rate="head_learning_rate",
        lacks={"labels": "it masks words itself where there are none"},
    ),
}
