"""LoRA on the backbone, and the heads trained in full beside it."""

from transformers import PreTrainedModel

from hf_targets.extras import require
from hf_targets.training.multitoken import heads_of


def add_lora(model: PreTrainedModel, rank: int):
    """Return the model under peft: LoRA on the backbone's linear layers, new heads trained whole.

    Args:
        rank: Of the adapters, 1 or more.
    Returns: A `peft.PeftModel`; its `merge_and_unload()` is a plain model again.
    Raises:
        ValueError: If `rank` is below 1.
        ImportError: If peft is missing.
    """
    if rank < 1:
        raise ValueError(f"the rank of LoRA must be 1 or more, got {rank}; None trains all of the model")
    peft = require("peft", extra="lora")
    heads = None if heads_of(model) is None else ["heads"]
    config = peft.LoraConfig(
        r=rank,
        target_modules="all-linear",
        exclude_modules=r".*\bheads\..*",
        modules_to_save=heads,
        task_type="CAUSAL_LM",
    )
    return peft.get_peft_model(model, config)
