"""The AWD-LSTMs that owe what every model owes, and their Trainer."""

import copy
from typing import Any

from torch import Tensor
from transformers import AutoModelForCausalLM

from hf_targets import AwdLstmTrainer, AwdLstmTrainingArguments
from tests.awd_lstm.models import make_awd_lstm
from tests.awd_lstm.training import text_blocks
from tests.model_case import FOUR, SIDES, ModelCase, causal_text
from tests.tiny_backbones import VOCAB, token_ids
from tests.tiny_models import training_inputs
from tests.trainer_case import TrainerCase


def _lstm_off(model: Any) -> tuple[Tensor, Tensor]:
    ids = token_ids(2, 16)
    return copy.deepcopy(model).train()(ids).logits, model(ids).logits


def _weights_of_lstm(model: Any) -> dict[str, float]:
    in_training = {"activation": model.config.activation_weight, "temporal": model.config.temporal_weight}
    return {"next_token": 1.0, **(in_training if model.training else {})}


def _lstm_case(**fields: Any) -> ModelCase:
    case = ModelCase(
        make=lambda: make_awd_lstm(**fields),
        batch=lambda: training_inputs("embedding"),
        text=causal_text,
        auto=AutoModelForCausalLM,
        off=_lstm_off,
        generate=lambda model: [model.generate(token_ids(2, 9), **FOUR, **way) for way in ({}, {"num_beams": 2})],
        hidden=lambda model, ids: model.base_model(ids)[0],
        part_weights=_weights_of_lstm,
        settings={"weight_dropout": 0.25, "temporal_weight": 0.5},
        sizes={"vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 3},
        pipelines=("text-generation", "feature-extraction"),
        compiled=None if fields else lambda: (case.make(), [case.padded((12, 7), side) for side in SIDES]),
        refuses={"token_type_ids": "token_type_ids must be 0, as this model has no second segment"},
        lacks={
            "the logits of what it wraps": "it wraps none",
            "one graph": "torch compiles no LSTM",
            "attentions": "there is no attention",
            "LoRA": "peft puts adapters on linear layers, and has none for an LSTM",
        },
        stands_for=None if fields else "class",
    )
    return case


CASES = {
    "lstm-tied": _lstm_case(),
    "lstm-untied": _lstm_case(tie_word_embeddings=False, num_hidden_layers=3),
}
TRAINERS = {
    "awd_lstm": TrainerCase(
        model=CASES["lstm-tied"],
        trainer=AwdLstmTrainer,
        arguments=AwdLstmTrainingArguments,
        rows=text_blocks,
        evaluated=text_blocks,
        metrics=("loss", "perplexity", "word_perplexity"),
        options={"bptt": 8, "optim": "adamw_torch"},
        weights={"activation_weight": 0.5, "temporal_weight": 3.0},
        lacks={
            "the steps of the plain trainer": "its state goes on from batch to batch",
            "lower parts": "the parts beside the cross-entropy grow with what the model has to say",
        },
    ),
}
