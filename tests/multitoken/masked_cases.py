"""What the contract's laws need to know of heads on masked models."""

from typing import Any

from torch import Tensor
from transformers import AutoModelForMaskedLM

from tests.model_case import SIDES, SIZES, ModelCase
from tests.tiny_backbones import VOCAB, token_ids
from tests.tiny_masked import make_masked_backbone, make_masked_model, masked_batch, masked_text


def _masked_off(model: Any) -> tuple[Tensor, Tensor]:
    ids = masked_batch()["input_ids"]
    return model(ids).logits, model.backbone(ids).logits


def _weights_of_masked(model: Any) -> dict[str, float]:
    count = len(model.heads)
    return {"masked_token": 0.5} | {f"head_{n}": model.config.loss_weight / (2 * count) for n in range(1, count + 1)}


def text(length: int) -> dict[str, Tensor]:
    """Return one row of so many tokens, some of them masked."""
    return masked_text(token_ids(1, length, seed=length) % (VOCAB - 5) + 3)


LACKS = {"one graph": "which rows its losses read depends on values", "generation": "it writes no text"}
NO_SEGMENTS = {"token_type_ids": "token_type_ids must be 0, as this model has no second segment"}
NOT_SHIFTED = "shift_labels is an argument of models that write text"


def masked_case(family: str, kind: str, **fields: Any) -> ModelCase:
    """Return the case of heads of a kind on a masked model of a family."""
    lacks = dict(LACKS)
    if family in ("distilbert", "modernbert", "crammed_bert"):
        lacks["use_cache"] = "its configuration has no such field"
    if family == "roberta":
        lacks["padding"] = "it finds positions by its padding token, and takes no others"

    def compiled() -> tuple[Any, list[dict[str, Tensor]]]:
        return case.make(), [case.padded((12, 7), side) for side in SIDES]

    case = ModelCase(
        make=lambda: make_masked_model(family, kind),
        batch=masked_batch,
        text=text,
        auto=AutoModelForMaskedLM,
        off=_masked_off,
        generate=lambda model: [],
        hidden=lambda model, ids: model.base_model(ids)[0],
        part_weights=_weights_of_masked,
        settings={"loss_weight": 0.3, "masked_only": True},
        sizes=dict(zip(SIZES, (VOCAB, 32, 2, 4, 64), strict=True)),
        wraps=lambda: make_masked_backbone(family),
        pipelines=("fill-mask", "feature-extraction"),
        compiled=compiled if family == "bert" else None,
        refuses={"shift_labels": NOT_SHIFTED, **(NO_SEGMENTS if family == "crammed_bert" else {})},
        lacks=lacks,
        **fields,
    )
    return case
