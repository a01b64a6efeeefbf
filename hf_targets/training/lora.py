"""LoRA on the backbone, and what a target adds trained in full beside it."""

import re
import warnings

import torch
from transformers import PreTrainedModel

from hf_targets.backbones.new_parts import new_parts_of
from hf_targets.extras import require


def add_lora(model: PreTrainedModel, rank: int, *, alpha: int = 8, dropout: float = 0.0):
    """Return the model under peft: LoRA on the backbone's linear layers, and what a target adds trained whole.

    The adapters' first weights depend on the seed that was set last (`torch.initial_seed`), and not on what was drawn
    since, so that models with and without new parts begin with the same ones. The random state stays as it is.

    Args:
        rank: Of the adapters, 1 or more.
        alpha: Their scale is alpha / rank.
        dropout: Before the adapters, in [0, 1).
    Returns: A `peft.PeftModel`; its `merge_and_unload()` is a plain model again.
    Raises:
        ValueError: If `rank` is below 1.
        ImportError: If peft is missing.
    """
    if rank < 1:
        raise ValueError(f"the rank of LoRA must be 1 or more, got {rank}; None trains all of the model")
    peft = require("peft", extra="lora")
    whole = new_parts_of(model)
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules="all-linear",
        exclude_modules=rf".*\b({'|'.join(map(re.escape, whole))})\..*" if whole else None,
        modules_to_save=whole or None,
        task_type=_task_of(model),
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        for noise in (".*is_gradient_checkpointing. is deprecated", "fan_in_fan_out is set to False"):
            warnings.filterwarnings("ignore", noise)  # of peft's own code, about which a user can do nothing
        torch.manual_seed(torch.initial_seed())
        return peft.get_peft_model(model, config)


def _task_of(model: PreTrainedModel) -> str | None:
    """Return peft's name for what a model does; None for one that does not generate token by token."""
    if not hasattr(model, "prepare_inputs_for_generation"):
        return None
    return "SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM"
