"""What the contract's laws need to know of CrammedBERT."""

import copy
from typing import Any

from torch import Tensor
from transformers import AutoModelForMaskedLM

from tests.crammed_bert.models import make_crammed_bert
from tests.model_case import SIDES, SIZES, ModelCase
from tests.multitoken.masked_cases import LACKS, NO_SEGMENTS, NOT_SHIFTED, text
from tests.tiny_backbones import VOCAB
from tests.tiny_masked import masked_batch


def _dropout_off(model: Any) -> tuple[Tensor, Tensor]:
    ids = masked_batch()["input_ids"]
    return copy.deepcopy(model).train()(ids).logits, model(ids).logits


def _crammed_case() -> ModelCase:
    case = ModelCase(
        make=make_crammed_bert,
        batch=masked_batch,
        text=text,
        auto=AutoModelForMaskedLM,
        off=_dropout_off,
        generate=lambda model: [],
        hidden=lambda model, ids: model.base_model(ids)[0],
        part_weights=lambda model: {"masked_token": 1.0},
        settings={"layer_norm_eps": 1e-5, "classifier_pooling": "cls"},
        sizes=dict(zip(SIZES, (VOCAB, 32, 2, 4, 32), strict=True)),
        pipelines=("fill-mask", "feature-extraction"),
        compiled=lambda: (case.make(), [case.padded((12, 7), side) for side in SIDES]),
        refuses={"shift_labels": NOT_SHIFTED, **NO_SEGMENTS},
        stands_for="class",
        lacks={
            **LACKS,
            "use_cache": "its configuration has no such field",
            "the logits of what it wraps": "it wraps none",
        },
    )
    return case


CASES = {"crammed": _crammed_case()}
