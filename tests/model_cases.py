"""The one table of models that owe what every model owes; a new model adds a line to `CASES`."""

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, PreTrainedModel

from hf_targets import CurveConfig, DynamicVocabForCausalLM
from hf_targets.backbones.encoder_decoder import read_pair
from tests.awd_lstm.models import make_awd_lstm
from tests.gaussian_case import gaussian_case
from tests.masked_case import crammed_case, masked_case
from tests.masked_diffusion.models import CURVES, make_from_causal, make_mdlm
from tests.masked_diffusion.models import masked_batch as mdlm_batch
from tests.model_case import SIZES, Batch, ModelCase, remembered
from tests.semi_autoregressive.models import KINDS, make_block_model, with_identity_curve
from tests.tensorized_case import heads_case, tensorized_case
from tests.tiny_backbones import CONFIGS, FAMILIES, VOCAB, make_backbone, token_ids
from tests.tiny_models import make_any, make_vocabulary, training_inputs
from tests.tiny_seq2seq import SEQ2SEQ_CONFIGS, make_pair_backbone, make_pair_model, pairs

FOUR = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
SIDES = ("left", "right")
COMPILED = {("gpt_neo", "difference"), ("llama", "conditional"), ("llama", "phrases"), ("marian", "difference")}


def _ensemble_off(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    ids = token_ids(2, 16)
    return model(ids, ensemble_weight=0.0).logits, model.backbone(ids).logits


def _phrases_off(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    ids = token_ids(2, 16)
    return model(ids).logits, model.backbone(ids).logits


def _curve_off(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    family = getattr(model.config.backbone, "model_type", None)
    plain, batch = make_from_causal(family=family) if family else make_mdlm(), mdlm_batch()
    return plain.with_curve(model.config.curve).with_curve(None)(**batch).logits, plain(**batch).logits


def _weights_of_heads(model: PreTrainedModel) -> dict[str, float]:
    heads = len(model.heads)
    return {"next_token": 0.5} | {f"head_{n}": model.config.loss_weight / (2 * heads) for n in range(1, heads + 1)}


def _weights_of_phrases(model: PreTrainedModel) -> dict[str, float]:
    return {name: getattr(model.config, f"{name}_loss_weight") for name in ("phrase", "token", "kl")}


def _causal_text(length: int) -> Batch:
    ids = token_ids(1, length, seed=length)
    return {"input_ids": ids, "labels": ids}


def _generate_phrases(model: Any) -> list[Tensor]:
    return [model.generate(token_ids(2, 9), phrases=make_vocabulary(), **FOUR)]


def _generate_with_heads(model: Any) -> list[Tensor]:
    ways: list[dict[str, Any]] = [{}, {"draft_tokens": 2}]
    if not model.config.separate_output_heads:
        ways.append({"ensemble_weight": 0.3})
    return [model.generate(token_ids(2, 9), **way, **FOUR) for way in ways]


def _generate_canvas(model: Any) -> list[Tensor]:
    return [model.generate(batch_size=2, max_length=8, generator=torch.Generator().manual_seed(0))]


_REFORMER_LACKS = {
    "checkpointing": "Transformers has none for it",
    "resizing": "Transformers does not save the output bias that it has resized",
    "attentions": "hashed attention returns no weights",
    "half logits": "rounding moves positions to other buckets of its hashes",
}
_READ_SEGMENTS = ("gpt2", "gpt_neo")


def _causal_case(family: str, kind: str) -> ModelCase:
    phrases, separate_output_heads, reformer = kind == "phrases", kind == "separate_output_heads", family == "reformer"
    settings = {"kl_positions": "all"} if phrases else {"loss_weight": 0.3}
    refuses = {} if family in _READ_SEGMENTS else {"token_type_ids": "does not generate from token_type_ids; leave it"}
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
        text=_causal_text,
        auto=AutoModelForCausalLM,
        off=_phrases_off if phrases else _ensemble_off,
        generate=_generate_phrases if phrases else _generate_with_heads,
        hidden=lambda model, ids: model.base_model(ids)[0],
        part_weights=_weights_of_phrases if phrases else _weights_of_heads,
        settings=settings,
        sizes={name: getattr(CONFIGS[family](), name) for name in SIZES},
        options={} if phrases or separate_output_heads else {"ensemble_weight": 0.3},
        wraps=lambda: make_backbone(family),
        pipelines=("text-generation", "feature-extraction"),
        compiled=compiled if (family, kind) in COMPILED else None,
        unused=frozenset({"backbone.lm_head.bias"}) if reformer else frozenset(),  # Reformer adds none
        refuses=refuses,
        lacks=lacks,
    )
    return case


def _mdlm_text(length: int) -> Batch:
    return mdlm_batch(1, length, seed=length) | {"timesteps": torch.tensor([1 / (1 + length)])}


def _mdlm_case(curve: str) -> ModelCase:
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
            **{
                name: f"unexpected keyword argument '{name}'"
                for name in ("inputs_embeds", "shift_labels", "position_ids")
            },
        },
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


def _identity_curve(model: Any) -> tuple[Tensor, Tensor]:
    words, ids = make_block_model("words", model.backbone.config.model_type), token_ids(2, 16)
    curve = with_identity_curve(words)
    return curve(ids, output_block_logits=True).block_logits, words(ids, output_block_logits=True).block_logits


def _generate_blocks(model: Any) -> list[Tensor]:
    return [model.generate(token_ids(2, 9), tokens_per_step=count, **FOUR) for count in (1, 2, 3)]


def _block_case(kind: str, family: str) -> ModelCase:
    refuses = {} if family in _READ_SEGMENTS else {"token_type_ids": "does not generate from token_type_ids; leave it"}
    case = ModelCase(
        make=lambda: make_block_model(kind, family),
        batch=lambda: training_inputs("embedding"),
        text=_causal_text,
        auto=AutoModelForCausalLM,
        off=_identity_curve,
        generate=_generate_blocks,
        hidden=lambda model, ids: model.base_model(ids)[0],
        part_weights=lambda model: {f"word_{n}": 1 / 3 for n in (1, 2, 3)},
        settings={"curve": CurveConfig(num_control_points=3, degree=1)} if kind == "words" else {"ngram_size": 5},
        sizes={name: getattr(CONFIGS[family](), name) for name in SIZES},
        wraps=lambda: make_backbone(family),
        pipelines=("text-generation", "feature-extraction"),
        compiled=(lambda: (case.make(), [case.padded((12, 7), side) for side in SIDES])) if kind == "curves" else None,
        refuses=refuses,
        lacks={"the logits of what it wraps": "its LSTM predicts the next word", "one graph": "torch compiles no LSTM"},
    )
    return case


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


def _pair_case(family: str, kind: str) -> ModelCase:
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
        part_weights=_weights_of_heads,
        settings={"loss_weight": 0.3},
        sizes={name: getattr(config, name) for name in SIZES if hasattr(config, name)},
        pipelines=(),
        options={"ensemble_weight": 0.3},
        wraps=lambda: make_pair_backbone(family),
        source=_source,
        compiled=(lambda: (case.make(), [case.padded((6, 4), "right")])) if (family, kind) in COMPILED else None,
        refuses={
            "token_type_ids": "does not generate from token_type_ids; leave it",
            "shift_labels": "shift_labels is for causal models",
        },
        unused=frozenset(name for name in _TABLES_OF_SINES if family == "marian"),
        lacks=lacks,
    )
    return case


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
        text=_causal_text,
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
    )
    return case


CASES = {
    # Qwen3 is a Llama with tied matrices, as heads see it
    **{f"difference-{family}": _causal_case(family, "difference") for family in FAMILIES if family != "qwen3"},
    **{f"phrases-{family}": _causal_case(family, "phrases") for family in ("gpt2", "llama", "opt", "phi", "reformer")},
    "embedding-llama": _causal_case("llama", "embedding"),
    **{
        f"separate_output_heads-{family}": _causal_case(family, "separate_output_heads") for family in ("gpt2", "llama")
    },
    # heads that read embeddings, whose width is not that of the output matrix in the last
    **{f"conditional-{family}": _causal_case(family, "conditional") for family in ("llama", "opt")},
    **{f"mdlm-{curve}": _mdlm_case(curve) for curve in CURVES if curve != "curve"},  # "curves" has all of it
    **{
        f"mdlm-{curve}-{family}": _from_causal_case(curve, family)
        for curve, family in (("plain", "llama"), ("hidden_curves", "gpt2"), ("hidden", "qwen3"))
    },
    **{
        f"blocks-{kind}": _block_case(kind, family)
        for kind, family in zip(KINDS, ("gpt2", "llama", "opt"), strict=True)
    },
    **{
        f"{kind}-{family}": _pair_case(family, kind)
        for family, kind in (
            ("marian", "difference"),
            ("bart", "embedding"),
            ("t5", "difference"),
            ("mt5", "conditional"),  # its output matrix is not tied
        )
    },
    **{
        f"masked-{kind}-{family}": masked_case(family, kind)
        for family, kind in (
            ("bert", "difference"),
            ("roberta", "masked_only"),
            ("distilbert", "embedding"),
            ("modernbert", "masked_only"),
            ("electra", "difference"),  # its output matrix is narrower than its layers
            ("crammed_bert", "masked_only"),
        )
    },
    "crammed": crammed_case(),
    "lstm-tied": _lstm_case(),
    "lstm-untied": _lstm_case(tie_word_embeddings=False, num_hidden_layers=3),
    "tensorized": tensorized_case(),
    "difference-tensorized": heads_case("difference"),
    # "curves" has the preset of "dinoiser", and "heads on a curve" has the curve of "curve"
    **{f"gaussian-{kind}": gaussian_case(kind) for kind in ("difformer", "curves", "heads", "heads on a curve")},
}
CASES = {name: replace(case, make=remembered(case.make)) for name, case in CASES.items()}
ONE_OF_A_CLASS = ("difference-gpt2", "phrases-gpt2", "mdlm-plain", "difference-marian", "masked-difference-bert")
ONE_OF_A_CLASS += ("blocks-words", "crammed", "lstm-tied", "tensorized", "gaussian-difformer")
"""One model of each class, for laws that take long."""
ONE_OF_A_KIND = (*ONE_OF_A_CLASS, "difference-reformer", "phrases-llama", "separate_output_heads-llama")
ONE_OF_A_KIND += ("conditional-opt", "mdlm-curves", "blocks-curves", "embedding-bart", "conditional-mt5")
ONE_OF_A_KIND += ("masked-masked_only-modernbert", "masked-difference-electra", "difference-tensorized")
ONE_OF_A_KIND += ("gaussian-heads on a curve",)
"""One model of each class, and those with parts that no other model of their class has."""


def parametrized(names: Iterable[str]):
    """Parametrize over the models of these names."""
    chosen = {name: CASES[name] for name in names}
    return pytest.mark.parametrize("case", chosen.values(), ids=chosen)


def models_that_owe(law: str, names: Iterable[str] = tuple(CASES)):
    """Parametrize over the models, all by default, that do not lack a law."""
    assert any(law in CASES[name].lacks for name in names), f"no model lacks {law}; take every_model"
    return parametrized(name for name in names if law not in CASES[name].lacks)


every_model = parametrized(CASES)
every_model_and_side = pytest.mark.parametrize(
    ("case", "side"),
    [
        pytest.param(case, side, id=f"{name}-{side}")
        for name, case in CASES.items()
        for side in SIDES
        if not case.lacks.keys() & {"padding", f"padding on the {side}"}
    ],
)
"""All models, and the sides on which their text, or their source, may be padded."""
every_class = parametrized(ONE_OF_A_CLASS)
every_kind = parametrized(ONE_OF_A_KIND)
every_wrapper_class = parametrized(name for name in ONE_OF_A_CLASS if CASES[name].wraps)
every_writing_wrapper_class = parametrized(
    name for name in ONE_OF_A_CLASS if CASES[name].wraps and "generation" not in CASES[name].lacks
)
every_causal_wrapper_class = parametrized(
    name
    for name in ONE_OF_A_CLASS
    if CASES[name].wraps and not CASES[name].source and "generation" not in CASES[name].lacks
)
