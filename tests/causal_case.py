"""What the contract's laws need to know of heads on a causal model, and of phrases."""

from typing import Any

from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from hf_targets import DynamicVocabForCausalLM
from tests.model_case import FOUR, READ_SEGMENTS, SIDES, SIZES, Batch, ModelCase, causal_text
from tests.tiny_backbones import CONFIGS, make_backbone, token_ids
from tests.tiny_models import make_any, make_vocabulary, training_inputs

_COMPILED = {("gpt_neo", "difference"), ("llama", "conditional"), ("llama", "phrases")}


def _ensemble_off(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    ids = token_ids(2, 16)
    return model(ids, ensemble_weight=0.0).logits, model.backbone(ids).logits


def _phrases_off(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    ids = token_ids(2, 16)
    return model(ids).logits, model.backbone(ids).logits


def weights_of_heads(model: PreTrainedModel) -> dict[str, float]:
    """Return the weight of each part of the loss of heads."""
    heads = len(model.heads)
    return {"next_token": 0.5} | {f"head_{n}": model.config.loss_weight / (2 * heads) for n in range(1, heads + 1)}


def _weights_of_phrases(model: PreTrainedModel) -> dict[str, float]:
    return {name: getattr(model.config, f"{name}_loss_weight") for name in ("phrase", "token", "kl")}


def _generate_phrases(model: Any) -> list[Tensor]:
    return [model.generate(token_ids(2, 9), phrases=make_vocabulary(), **FOUR)]


def _generate_with_heads(model: Any) -> list[Tensor]:
    ways: list[dict[str, Any]] = [{}, {"draft_tokens": 2}]
    if not model.config.separate_output_heads:
        ways.append({"ensemble_weight": 0.3})
    return [model.generate(token_ids(2, 9), **way, **FOUR) for way in ways]


_REFORMER_LACKS = {
    "checkpointing": "Transformers has none for it",
    "resizing": "Transformers does not save the output bias that it has resized",
    "attentions": "hashed attention returns no weights",
    "half logits": "rounding moves positions to other buckets of its hashes",
}


def causal_case(family: str, kind: str, **fields: Any) -> ModelCase:
    """Return the case of heads of a kind, or of phrases, on a causal model of a family."""
    phrases, separate_output_heads, reformer = kind == "phrases", kind == "separate_output_heads", family == "reformer"
    settings = {"kl_positions": "all"} if phrases else {"loss_weight": 0.3}
    refuses = {} if family in READ_SEGMENTS else {"token_type_ids": "does not generate from token_type_ids; leave it"}
    if reformer:
        refuses["inputs_embeds"] = "ReformerModelWithLMHead does not generate from inputs_embeds"
    lacks = dict(_REFORMER_LACKS) if reformer else {}
    if phrases:
        lacks |= {
            "rows": "phrases of the other rows are negatives of each",
            "one graph": "which rows its losses read depends on values",
        }
    if separate_output_heads:
        lacks["resizing"] = "heads with output matrices of their own keep their vocabulary"

    def compiled() -> tuple[Any, list[Batch]]:
        if phrases:
            parts = (make_backbone(family, seed, num_hidden_layers=1) for seed in (0, 1))
            return DynamicVocabForCausalLM.from_base(*parts), [case.batch()]
        return case.make(), [case.padded((12, 7), side) for side in SIDES]

    case = ModelCase(
        make=lambda: make_any(family, kind),
        batch=lambda: training_inputs(kind),
        text=causal_text,
        auto=AutoModelForCausalLM,
        off=_phrases_off if phrases else _ensemble_off,
        generate=_generate_phrases if phrases else _generate_with_heads,
        hidden=lambda model, ids: model.base_model(ids)[0],
        part_weights=_weights_of_phrases if phrases else weights_of_heads,
        settings=settings,
        sizes={name: getattr(CONFIGS[family](), name) for name in SIZES},
        options={} if phrases or separate_output_heads else {"ensemble_weight": 0.3},
        wraps=lambda: make_backbone(family),
        pipelines=("text-generation", "feature-extraction"),
        compiled=compiled if (family, kind) in _COMPILED else None,
        unused=frozenset({"backbone.lm_head.bias"}) if reformer else frozenset(),  # Reformer adds none
        refuses=refuses,
        lacks=lacks,
        **fields,
    )
    return case
