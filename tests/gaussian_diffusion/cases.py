"""What the contract's laws need to know of Gaussian diffusion models, plain, with heads and with curves."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

from hf_targets import (
    DifformerConfig,
    DifformerForConditionalGeneration,
    GaussianDiffusionTrainer,
    GaussianDiffusionTrainingArguments,
)
from tests.gaussian_diffusion.models import LATENT, make_difformer, noisy_pairs, noisy_rows
from tests.model_case import SIZES, Batch, ModelCase, TrainedModel
from tests.tiny_backbones import VOCAB
from tests.tiny_seq2seq import pairs
from tests.trainer_case import TrainerCase

_REFUSES = ("inputs_embeds", "shift_labels", "position_ids", "token_type_ids")


def _noise(num_rows: int, time: int) -> Tensor:
    return torch.randn(num_rows, time, LATENT, generator=torch.Generator().manual_seed(time))


def _source(num_rows: int) -> Batch:
    return {name: value for name, value in pairs(num_rows).items() if name != "labels"}


@dataclass(frozen=True, kw_only=True)
class GaussianCase(ModelCase):
    """A Gaussian diffusion model: the text that its decoder reads is a noisy one, made of labels."""

    def reading(self, ids: Tensor) -> Batch:
        """Return the arguments of a call whose source and text are the ids (batch, time)."""
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": ids,
            "timesteps": self.times(len(ids)),
            "noise": _noise(*ids.shape),
        }

    def source_alone(self, ids: Tensor) -> Batch:
        """Return the arguments of a call without a text."""
        return {"input_ids": ids}

    def times(self, num_rows: int) -> Tensor:
        """Return times of noise, (batch,), different for each row."""
        return self.make().process.times(torch.arange(num_rows) / num_rows, 0.0)


def _targets_off(model: Any) -> tuple[Tensor, Tensor]:
    plain = make_difformer(self_conditioning="both", preset=model.config.preset)
    off = DifformerForConditionalGeneration(DifformerConfig(**{**model.config.to_dict(), "curve": None})).eval()
    missing, unexpected = off.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected and all(name.startswith("heads.") for name in missing)  # heads change no logits
    return off(**noisy_pairs(model)).logits, plain(**noisy_pairs(model)).logits


def _gaussian_case(kind: str) -> ModelCase:
    def text(length: int) -> Batch:
        batch = pairs(1, length + 2, length, seed=length)
        return {**batch, "timesteps": case.times(3)[length % 3 :][:1], "noise": _noise(1, length)}

    def generate(model: Any) -> list[Tensor]:
        ways: list[dict[str, Any]] = [{}, {"num_noises": 2, "num_lengths": 2}]
        if model.heads is not None:
            ways.append({"ensemble_weight": 0.3})
        return [model.generate(**_source(2), **way, generator=torch.Generator().manual_seed(0)) for way in ways]

    case = GaussianCase(
        make=lambda: make_difformer(kind, self_conditioning="both"),  # "half" is left to chance
        batch=lambda: noisy_pairs(case.make()),
        text=text,
        auto=AutoModelForSeq2SeqLM,
        off=_targets_off,
        generate=generate,
        hidden=lambda model, ids: model.encode(ids).hidden,
        part_weights=lambda model: {"diffusion": 1.0, "words": 1.0, "length": model.config.length_loss_weight},
        settings={"length_loss_weight": 0.3, "label_smoothing": 0.2},
        sizes=dict(zip(SIZES, (VOCAB, 32, 2, 4, 40), strict=True)),
        pipelines=("feature-extraction",),
        source=_source,
        stands_for={"difformer": "class", "heads on a curve": "kind"}.get(kind),
        refuses={name: f"reads input_ids and labels, and no {name}" for name in _REFUSES},
        lacks={"the logits of what it wraps": "it wraps none", "labels of the text's shape": "its labels are its text"},
    )
    return case


# "curves" has the preset of "dinoiser", and "heads on a curve" has the curve of "curve"
CASES = {f"gaussian-{kind}": _gaussian_case(kind) for kind in ("difformer", "curves", "heads", "heads on a curve")}
TRAINERS = {
    "gaussian_diffusion": TrainerCase(
        model=TrainedModel(
            make=lambda: make_difformer(self_conditioning="both"),  # "half" leaves it to chance
            part_weights=lambda model: {"diffusion": 1.0, "words": 1.0, "length": model.config.length_loss_weight},
            refuses={"shift_labels": "reads input_ids and labels, and no shift_labels"},
        ),
        trainer=GaussianDiffusionTrainer,
        arguments=GaussianDiffusionTrainingArguments,
        rows=noisy_rows,
        evaluated=noisy_rows,
        metrics=("loss", "diffusion", "words", "length", "perplexity"),
        options={"ema_decay": 0.5},
        weights={"length_loss_weight": 0.3},
    ),
}
