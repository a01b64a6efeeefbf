"""What the contract's laws need to know of Gaussian diffusion models, plain, with heads and with curves."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

from hf_targets import DifformerConfig, DifformerForConditionalGeneration
from tests.gaussian_diffusion.models import LATENT, make_difformer, noisy_pairs
from tests.model_case import SIZES, Batch, ModelCase, remembered
from tests.tiny_backbones import VOCAB
from tests.tiny_seq2seq import pairs

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


def gaussian_case(kind: str) -> ModelCase:
    """Return the case of one of the kinds of tiny Gaussian diffusion models."""

    make = remembered(lambda: make_difformer(kind, self_conditioning="both"))  # "half" is left to chance

    def text(length: int) -> Batch:
        batch = pairs(1, length + 2, length, seed=length)
        return {**batch, "timesteps": case.times(3)[length % 3 :][:1], "noise": _noise(1, length)}

    def generate(model: Any) -> list[Tensor]:
        ways: list[dict[str, Any]] = [{}, {"num_noises": 2, "num_lengths": 2}]
        if model.heads is not None:
            ways.append({"ensemble_weight": 0.3})
        return [model.generate(**_source(2), **way, generator=torch.Generator().manual_seed(0)) for way in ways]

    case = GaussianCase(
        make=make,
        batch=lambda: noisy_pairs(make()),
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
        refuses={name: f"reads input_ids and labels, and no {name}" for name in _REFUSES},
        lacks={"the logits of what it wraps": "it wraps none", "labels of the text's shape": "its labels are its text"},
    )
    return case
