"""What the contract's laws need to know of heads on encoder-decoder models."""

from typing import Any

from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

from hf_targets.backbones.encoder_decoder import read_pair
from tests.causal_case import weights_of_heads
from tests.model_case import FOUR, SIZES, Batch, ModelCase
from tests.tiny_seq2seq import SEQ2SEQ_CONFIGS, make_pair_backbone, make_pair_model, pairs

_TABLES_OF_SINES = tuple(f"backbone.model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder"))


def _pair_text(length: int) -> Batch:
    return pairs(1, length + 2, length, seed=length)


def _source(num_rows: int) -> Batch:
    batch = pairs(num_rows)
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def _pair_off(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    return model(**pairs(), ensemble_weight=0.0).logits, model.backbone(**pairs()).logits


def _generate_pairs(model: Any) -> list[Tensor]:
    ways: list[dict[str, Any]] = [{}, {"draft_tokens": 2}, {"ensemble_weight": 0.3}, {"num_beams": 2}]
    return [model.generate(**_source(2), **{**FOUR, **way}) for way in ways]


def pair_case(family: str, kind: str, **fields: Any) -> ModelCase:
    """Return the case of heads of a kind on an encoder-decoder model of a family."""
    config = SEQ2SEQ_CONFIGS[family]()
    lacks: dict[str, str] = {}
    if family not in ("t5", "mt5"):
        lacks["padding on the left"] = "its encoder counts positions from the first token, padding or not"
    if family == "marian":
        lacks["device map"] = "Transformers does not find its tables of sines on a disk"
    if family == "mt5":
        lacks["resizing"] = "Transformers ties its output matrix when it resizes"
    case = ModelCase(
        make=lambda: make_pair_model(family, target=kind),
        batch=pairs,
        text=_pair_text,
        auto=AutoModelForSeq2SeqLM,
        off=_pair_off,
        generate=_generate_pairs,
        hidden=lambda model, ids: read_pair(model.backbone, **case.reading(ids))[0],
        part_weights=weights_of_heads,
        settings={"loss_weight": 0.3},
        sizes={name: getattr(config, name) for name in SIZES if hasattr(config, name)},
        pipelines=(),
        options={"ensemble_weight": 0.3},
        wraps=lambda: make_pair_backbone(family),
        source=_source,
        compiled=(lambda: (case.make(), [case.padded((6, 4), "right")])) if family == "marian" else None,
        refuses={
            "token_type_ids": "does not generate from token_type_ids; leave it",
            "shift_labels": "shift_labels is for causal models",
        },
        unused=frozenset(name for name in _TABLES_OF_SINES if family == "marian"),
        lacks=lacks,
        **fields,
    )
    return case
