"""What can be known of a pre-trained model before it is fine-tuned on a task of GLUE."""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_targets.backbones.checkpoint import listed
from hf_targets.backbones.positions import token_limit
from hf_targets.data.glue import GlueTask
from hf_targets.named_models import check_tokenizer, model_at

logger = logging.getLogger(__name__)

_OF_THE_TASK = ("num_labels", "id2label", "label2id", "problem_type", "pad_token_id")


def check_glue_model(name: str, task: GlueTask, max_length: int, model_fields: Mapping[str, Any]) -> None:
    """Check that a pre-trained model can be fine-tuned on a task, as far as its files tell.

    Args:
        name: A name or folder with a tokenizer.
        max_length: Tokens that it must read.
        model_fields: Fields of its configuration to change.
    Raises:
        ValueError: If there is no such model or no classifier of its kind, the tokenizer is not its own or has no token
            for padding, it has fewer positions, or a field cannot be changed.
    """
    with model_at(name, "pre-trained model", "give a folder that save_pretrained wrote, or a name on the Hub"):
        config, tokenizer = AutoConfig.from_pretrained(name), AutoTokenizer.from_pretrained(name)
    if tokenizer.pad_token_id is None:
        raise ValueError(f"the tokenizer of {name} has no padding token, and batches need one; set one")
    model = _classifier(name, config)
    check_tokenizer(tokenizer, model, name)
    if len(tokenizer) > config.get_text_config().vocab_size:
        raise ValueError(
            f"the tokenizer of {name} has {len(tokenizer)} tokens and the model "
            f"{config.get_text_config().vocab_size}; give the model's own"
        )
    positions = token_limit(model, tokenizer)
    if positions < max_length:
        raise ValueError(
            f"max_length must be at most the {positions} tokens that {name} reads, got {max_length}; lower it"
        )
    _check_fields(name, config, model, model_fields)
    if len(task.texts) == 2 and not _tells_texts_apart(tokenizer):
        logger.warning(
            "The tokenizer of %s puts nothing between the two texts of a pair, so that the model reads them as one; "
            "give it a template for pairs",
            name,
        )


def _classifier(name: str, config: Any) -> PreTrainedModel:
    """Return a classifier without weights."""
    try:
        with torch.device("meta"):
            return AutoModelForSequenceClassification.from_config(config)
    except ValueError as error:
        way_out = "give a model that AutoModelForSequenceClassification loads"
        if hasattr(config, "backbone"):
            way_out = "give the model in it: the folder that model.backbone.save_pretrained wrote, with the tokenizer"
        raise ValueError(f"{name} is a {type(config).__name__}, of which there is no classifier; {way_out}") from error


def _check_fields(name: str, config: Any, model: PreTrainedModel, fields: Mapping[str, Any]) -> None:
    if own := [field for field in fields if field in _OF_THE_TASK]:
        raise ValueError(f"the task and the tokenizer set {listed(own)}; leave it out of model_fields")
    if unknown := [field for field in fields if not hasattr(config, field)]:
        raise ValueError(f"{type(config).__name__} has no field {', '.join(unknown)}; leave it out of model_fields")
    try:
        changed = AutoConfig.from_pretrained(name, **fields)
        with torch.device("meta"):
            shapes = _shapes(AutoModelForSequenceClassification.from_config(changed))
    except (StrictDataclassError, TypeError, ValueError, RuntimeError, AttributeError, KeyError) as error:
        raise ValueError(f"model_fields {dict(fields)} make no {type(config).__name__}: {error}") from error
    before = _shapes(model)
    if other := sorted(key for key, shape in shapes.items() if before.get(key) != shape):
        raise ValueError(
            f"model_fields {dict(fields)} change the shapes of pre-trained weights: {listed(other)}; change fields "
            "that leave the weights as they are, such as a dropout"
        )


def _shapes(model: PreTrainedModel) -> dict[str, torch.Size]:
    begin = f"{model.base_model_prefix}."
    return {name: one.shape for name, one in model.named_parameters() if name.startswith(begin)}


def _tells_texts_apart(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a pair of texts is more than one text after the other."""
    texts: Any = ("the cat", "sat")
    pair: Any = tokenizer(*texts)
    first, second = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts)
    joined = [*first, *second]  # pyright: ignore[reportGeneralTypeIssues]
    ids = pair["input_ids"]
    is_joined = any(ids[start : start + len(joined)] == joined for start in range(len(ids)))
    return not is_joined or len(set(pair.get("token_type_ids") or [0])) > 1
