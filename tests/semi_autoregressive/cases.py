"""The models that predict blocks and owe what every model owes, and their Trainer."""

from typing import Any

from torch import Tensor
from transformers import AutoModelForCausalLM

from hf_targets import CurveConfig, SemiAutoregressiveTrainer, TargetTrainingArguments
from tests.model_case import FOUR, READ_SEGMENTS, SIDES, SIZES, ModelCase, causal_text
from tests.semi_autoregressive.models import KINDS, make_block_model, with_identity_curve
from tests.tiny_backbones import CONFIGS, make_backbone, token_ids
from tests.tiny_models import training_inputs
from tests.trainer_case import TrainerCase, padded_rows


def _identity_curve(model: Any) -> tuple[Tensor, Tensor]:
    words, ids = make_block_model("words", model.backbone.config.model_type), token_ids(2, 16)
    curve = with_identity_curve(words)
    return curve(ids, output_block_logits=True).block_logits, words(ids, output_block_logits=True).block_logits


def _generate_blocks(model: Any) -> list[Tensor]:
    return [model.generate(token_ids(2, 9), tokens_per_step=count, **FOUR) for count in (1, 2, 3)]


def _block_case(kind: str, family: str) -> ModelCase:
    refuses = {} if family in READ_SEGMENTS else {"token_type_ids": "does not generate from token_type_ids; leave it"}
    case = ModelCase(
        make=lambda: make_block_model(kind, family),
        batch=lambda: training_inputs("embedding"),
        text=causal_text,
        auto=AutoModelForCausalLM,
        off=_identity_curve,
        generate=_generate_blocks,
        hidden=lambda model, ids: model.base_model(ids)[0],
        part_weights=lambda model: {f"word_{n}": 1 / 3 for n in (1, 2, 3)},
        settings={"curve": CurveConfig(num_control_points=3, degree=1)} if kind == "words" else {"ngram_size": 5},
        sizes={name: getattr(CONFIGS[family](), name) for name in SIZES},
        wraps=lambda: make_backbone(family),
        pipelines=("text-generation", "feature-extraction"),
        compiled=(lambda: (case.make(), [case.padded((12, 7), side) for side in SIDES])) if kind == "curves" else None,
        refuses=refuses,
        stands_for={"words": "class", "curves": "kind"}.get(kind),
        lacks={"the logits of what it wraps": "its LSTM predicts the next word", "one graph": "torch compiles no LSTM"},
    )
    return case


CASES = {
    f"blocks-{kind}": _block_case(kind, family) for kind, family in zip(KINDS, ("gpt2", "llama", "opt"), strict=True)
}
TRAINERS = {
    "semi_autoregressive": TrainerCase(
        model=CASES["blocks-words"],
        trainer=SemiAutoregressiveTrainer,
        arguments=TargetTrainingArguments,
        rows=padded_rows,
        evaluated=padded_rows,
        metrics=("perplexity", "perplexity_3", "word_perplexity"),
    ),
}
