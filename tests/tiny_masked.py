"""Tiny masked models of several families with random weights, with and without heads, and texts with masked words."""

from typing import Any

import torch
from torch import Tensor
from transformers import (
    AlbertConfig,
    AutoModelForMaskedLM,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    ModernBertConfig,
    PreTrainedModel,
    RobertaConfig,
)

from hf_targets import CrammedBertConfig, MultiTokenForMaskedLM
from hf_targets.maths.losses import IGNORED
from tests.tiny_backbones import SMALL, VOCAB, token_ids

MASK = VOCAB - 1
NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SIZES: dict[str, Any] = {**SMALL, "intermediate_size": 48, "max_position_embeddings": 64}
MASKED_CONFIGS = {
    "bert": lambda: BertConfig(**SIZES, **NO_DROPOUT, pad_token_id=0),
    "roberta": lambda: RobertaConfig(**SIZES, **NO_DROPOUT, pad_token_id=0, bos_token_id=1, eos_token_id=2),
    "distilbert": lambda: DistilBertConfig(
        vocab_size=VOCAB, dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=64, pad_token_id=0,
        dropout=0.0, attention_dropout=0.0,
    ),
    "modernbert": lambda: ModernBertConfig(
        **SIZES, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2, local_attention=8,
        global_attn_every_n_layers=2,
    ),
    "electra": lambda: ElectraConfig(**SIZES, **NO_DROPOUT, embedding_size=16, pad_token_id=0),  # a narrow output
    "crammed_bert": lambda: CrammedBertConfig(**SIZES, **NO_DROPOUT),
    "albert": lambda: AlbertConfig(**SIZES, **NO_DROPOUT, embedding_size=16, pad_token_id=0, bos_token_id=1),
}  # fmt: skip
KINDS = {"difference": {}, "embedding": {"target": "embedding"}, "masked_only": {"masked_only": True, "ngram_size": 3}}


def make_masked_backbone(family: str = "bert", seed: int = 0) -> PreTrainedModel:
    """Return a masked model in evaluation mode, whose biases are not 0."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = AutoModelForMaskedLM.from_config(MASKED_CONFIGS[family]()).eval()
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def make_masked_model(family: str = "bert", kind: str = "difference", seed: int = 0, **config: Any) -> Any:
    """Return a masked model with heads, in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        fields = {"ngram_size": 2, "loss_weight": 0.7, **KINDS[kind], **config}
        return MultiTokenForMaskedLM.from_base(make_masked_backbone(family, seed), **fields).eval()


def masked_text(ids: Tensor) -> dict[str, Tensor]:
    """Return a text (batch, time) with about every third word masked, never the first of a row, and its labels."""
    masked = (torch.arange(ids.shape[1]) * 7 + ids.sum(dim=1, keepdim=True)) % 3 == 0
    masked[:, 0] = False
    return {"input_ids": ids.masked_fill(masked, MASK), "labels": ids.masked_fill(~masked, IGNORED)}


def masked_batch(num_rows: int = 3, time: int = 12) -> dict[str, Tensor]:
    """Return a batch of such texts, whose words are none of the special tokens."""
    return masked_text(token_ids(num_rows, time) % (VOCAB - 5) + 3)
