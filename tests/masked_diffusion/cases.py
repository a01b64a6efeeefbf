"""The masked diffusion models that owe what every model owes, and their Trainer."""

from dataclasses import replace
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForMaskedLM, PreTrainedModel

from hf_targets import DiffusionTrainer, DiffusionTrainingArguments
from hf_targets.maths.losses import IGNORED
from tests.masked_diffusion.models import CURVES, make_from_causal, make_mdlm
from tests.masked_diffusion.models import masked_batch as mdlm_batch
from tests.masked_diffusion.training import blocks, masked_blocks
from tests.model_case import SIDES, SIZES, Batch, ModelCase
from tests.tiny_backbones import CONFIGS, VOCAB
from tests.trainer_case import TrainerCase


def _curve_off(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    family = getattr(model.config.backbone, "model_type", None)
    plain, batch = make_from_causal(family=family) if family else make_mdlm(), mdlm_batch()
    return plain.with_curve(model.config.curve).with_curve(None)(**batch).logits, plain(**batch).logits


def _generate_canvas(model: Any) -> list[Tensor]:
    return [model.generate(batch_size=2, max_length=8, generator=torch.Generator().manual_seed(0))]


def _mdlm_text(length: int) -> Batch:
    return mdlm_batch(1, length, seed=length) | {"timesteps": torch.tensor([1 / (1 + length)])}


def _mdlm_case(curve: str, **fields: Any) -> ModelCase:
    def compiled() -> tuple[Any, list[Batch]]:
        own = {name: ids for name, ids in case.batch().items() if name != "timesteps"}
        own["input_ids"] = own["labels"].clamp(min=0)  # a text that the model masks itself
        return make_mdlm(curve, num_hidden_layers=2), [*(case.padded((9, 5), side) for side in SIDES), own]

    case = ModelCase(
        make=lambda: make_mdlm(curve),
        batch=mdlm_batch,
        text=_mdlm_text,
        auto=AutoModelForMaskedLM,
        off=_curve_off,
        generate=_generate_canvas,
        hidden=lambda model, ids: model(ids, output_hidden_states=True).hidden_states[-1],
        part_weights=lambda _: {"nelbo": 1.0},
        settings={"noise_schedule": "cosine"},
        sizes=dict(zip(SIZES, (VOCAB, 32, 3, 4, 16), strict=True)),
        pipelines=("fill-mask", "feature-extraction"),
        compiled=compiled if curve == "hidden" else None,
        refuses={
            "token_type_ids": "token_type_ids must be 0, as this model has no second segment",
            "inputs_embeds": "(leave out|got) inputs_embeds",
            **{name: f"unexpected keyword argument '{name}'" for name in ("shift_labels", "position_ids")},
        },
        **fields,
    )
    return case


def _from_causal_case(curve: str, family: str) -> ModelCase:
    case = _mdlm_case(curve)
    return replace(
        case,
        make=lambda: make_from_causal(curve, family),
        sizes={**{name: getattr(CONFIGS[family](), name) for name in SIZES}, "max_position_embeddings": 16},
        compiled=(lambda: (make_from_causal(curve, family), [case.batch()])) if curve == "plain" else None,
    )


CASES = {
    **{
        f"mdlm-{curve}": _mdlm_case(curve, stands_for={"plain": "class", "curves": "kind"}.get(curve))
        for curve in CURVES
        if curve != "curve"  # "curves" has all of it
    },
    **{
        f"mdlm-{curve}-{family}": _from_causal_case(curve, family)
        for curve, family in (("plain", "llama"), ("hidden_curves", "gpt2"), ("hidden", "qwen3"))
    },
}


def _masked_rows(num_rows: int) -> Dataset:
    """Return rows that are masked already; padding has no label, which the Trainer of Transformers would count."""

    def unlabelled(row: dict[str, list]) -> dict[str, list]:
        pairs = zip(row["labels"], row["attention_mask"], strict=True)
        return {"labels": [label if kept else IGNORED for label, kept in pairs]}

    return masked_blocks(num_rows).map(unlabelled)


TRAINERS = {
    "masked_diffusion": TrainerCase(
        model=CASES["mdlm-curves"],
        trainer=DiffusionTrainer,
        arguments=DiffusionTrainingArguments,
        rows=_masked_rows,
        evaluated=blocks,
        metrics=("loss", "perplexity", "nelbo_standard_error"),
        options={"ema_decay": 0.5, "evaluation_draws": 2},
        drawn="timesteps",
    ),
}
