"""What the contract's laws need to know of Tensorized Transformers, and of heads on one."""

import copy
from typing import Any

from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.model_case import FOUR, SIDES, SIZES, ModelCase, causal_text
from tests.tensorized_transformer.models import make_heads, make_tensorized
from tests.tiny_backbones import VOCAB, token_ids

OF_TINY: dict[str, int] = dict(zip(SIZES[:-1], (VOCAB, 32, 2, 1), strict=True))
REFUSES = {"token_type_ids": "token_type_ids must be 0, as this model has no second segment"}
NO_WEIGHTS = "there is no softmax, and so no attention weights"


def _tensorized_case() -> ModelCase:
    def dropout_off(model: Any) -> tuple[Tensor, Tensor]:
        ids = token_ids(2, 16)
        return copy.deepcopy(model).train()(ids).logits, model(ids).logits

    case = ModelCase(
        make=make_tensorized,
        batch=lambda: {name: token_ids(2, 16) for name in ("input_ids", "labels")},
        text=causal_text,
        auto=AutoModelForCausalLM,
        off=dropout_off,
        generate=lambda model: [model.generate(token_ids(2, 9), **FOUR, **way) for way in ({}, {"num_beams": 2})],
        hidden=lambda model, ids: model.base_model(ids)[0],
        part_weights=lambda _: {"next_token": 1.0},
        settings={"dropout": 0.3, "initializer_range": 0.1},
        sizes=OF_TINY,
        pipelines=("text-generation", "feature-extraction"),
        refuses=REFUSES,
        stands_for="class",
        lacks={"the logits of what it wraps": "it wraps none", "attentions": NO_WEIGHTS},
    )
    return case


def _heads_case(target: str) -> ModelCase:
    def ensemble_off(model: Any) -> tuple[Tensor, Tensor]:
        ids = token_ids(2, 16)
        return model(ids, ensemble_weight=0.0).logits, model.backbone(ids).logits

    def generate(model: Any) -> list[Tensor]:
        ways: list[dict[str, Any]] = [{}, {"draft_tokens": 2}, {"ensemble_weight": 0.3}]
        return [model.generate(token_ids(2, 9), **way, **FOUR) for way in ways]

    case = ModelCase(
        make=lambda: make_heads(target),
        batch=lambda: {name: token_ids(2, 16) for name in ("input_ids", "labels")},
        text=causal_text,
        auto=AutoModelForCausalLM,
        off=ensemble_off,
        generate=generate,
        hidden=lambda model, ids: model.base_model(ids)[0],
        part_weights=lambda model: (
            {"next_token": 0.5} | {f"head_{n}": model.config.loss_weight / 6 for n in range(1, 4)}
        ),
        settings={"loss_weight": 0.3},
        sizes=OF_TINY,
        options={"ensemble_weight": 0.3},
        wraps=make_tensorized,
        pipelines=("text-generation", "feature-extraction"),
        compiled=lambda: (case.make(), [case.padded((12, 7), side) for side in SIDES]),
        refuses=REFUSES,
        stands_for="kind",
        lacks={"attentions": NO_WEIGHTS},
    )
    return case


CASES = {"tensorized": _tensorized_case(), "difference-tensorized": _heads_case("difference")}
