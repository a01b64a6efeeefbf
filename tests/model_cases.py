"""The one table of models that owe what every model owes; a new model adds a line to `CASES`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

from hf_targets.maths.losses import IGNORED
from tests.mdlm_models import CURVES, make_mdlm, masked_batch
from tests.tiny_models import FAMILIES, KINDS, make_any, token_ids, training_inputs

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class ModelCase:
    """A tiny model, and what a law needs to know of it.

    Attributes:
        make: Makes it in evaluation mode, always with the same weights and without dropout.
        batch: What it is trained on.
        auto: The Auto class that loads it.
        off: Gives its logits with the target switched off, and those of the model that has none.
        part_weights: Of each part of the loss, by its name.
        settings: Fields of its configuration that are not the defaults.
        row_by_row: Whether rows of a batch can be taken alone; not where they are each other's negatives.
        checkpoints, compiles: Whether gradient checkpointing and torch.compile work for what is wrapped.
        unused: Parameters that no output depends on.
    """

    make: Callable[[], Any]
    batch: Callable[[], Batch]
    auto: Any
    off: Callable[[Any], tuple[Tensor, Tensor]]
    part_weights: Callable[[Any], dict[str, float]]
    settings: dict[str, Any]
    row_by_row: bool = True
    checkpoints: bool = True
    compiles: bool = False
    unused: frozenset[str] = field(default_factory=frozenset)

    def without_targets(self) -> Batch:
        """Return the batch without any target."""
        targets = {"labels", "phrase_targets"}
        return {
            name: torch.full_like(value, IGNORED) if name in targets else value for name, value in self.batch().items()
        }


def _ensemble_off(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    ids = token_ids(2, 16)
    return model(ids, ensemble_weight=0.0).logits, model.backbone(ids).logits


def _phrases_off(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    ids = token_ids(2, 16)
    return model(ids).logits, model.backbone(ids).logits


def _curve_off(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    plain, batch = make_mdlm(), masked_batch()
    return plain.with_curve(model.config.curve).with_curve(None)(**batch).logits, plain(**batch).logits


def _weights_of_heads(model: PreTrainedModel) -> dict[str, float]:
    heads = len(model.heads)
    return {"next_token": 0.5} | {f"head_{n}": model.config.loss_weight / (2 * heads) for n in range(1, heads + 1)}


def _weights_of_phrases(model: PreTrainedModel) -> dict[str, float]:
    return {name: getattr(model.config, f"{name}_loss_weight") for name in ("phrase", "token", "kl")}


def _causal_case(family: str, kind: str) -> ModelCase:
    phrases = kind == "phrases"
    return ModelCase(
        make=lambda: make_any(family, kind),
        batch=lambda: training_inputs(kind),
        auto=AutoModelForCausalLM,
        off=_phrases_off if phrases else _ensemble_off,
        part_weights=_weights_of_phrases if phrases else _weights_of_heads,
        settings={"kl_direction": "reverse"} if phrases else {"ensemble_weight": 0.3},
        row_by_row=not phrases and family != "reformer",  # whose hashes are drawn for a batch
        checkpoints=family != "reformer",
        compiles=family == "llama" or (family == "gpt_neo" and not phrases),
        unused=frozenset({"backbone.lm_head.bias"}) if family == "reformer" else frozenset(),  # which adds none
    )


CASES = {
    # in training Reformer takes multiples of its chunks alone, and a text with phrases is of any length
    **{
        f"{kind}-{family}": _causal_case(family, kind)
        for family in FAMILIES
        for kind in KINDS
        if (family, kind) != ("reformer", "phrases")
    },
    **{
        f"mdlm-{kind}": ModelCase(
            make=lambda kind=kind: make_mdlm(kind),
            batch=masked_batch,
            auto=AutoModelForMaskedLM,
            off=_curve_off,
            part_weights=lambda _: {"nelbo": 1.0},
            settings={"noise_schedule": "cosine", "num_diffusion_steps": 50},
            compiles=kind in ("plain", "curve", "curves", "hidden"),
        )
        for kind in CURVES
    },
}
