"""Models that are loaded by a name, whatever they predict."""

import json
import os
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM
from transformers.utils.peft_utils import find_adapter_config_file

from hf_targets import repair_reformer


def load_language_model(name: str | os.PathLike[str]) -> Any:
    """Return a causal model, a masked one, or one of pairs, with its output embeddings, in evaluation mode.

    A folder of LoRA's adapters gives its base model with them.
    """
    adapter = find_adapter_config_file(str(name))
    base = name if adapter is None else json.loads(Path(adapter).read_text())["base_model_name_or_path"]
    config = AutoConfig.from_pretrained(base)
    is_masked = any(one.endswith("ForMaskedLM") or "Mdlm" in one for one in config.architectures or [])
    auto_class: Any = AutoModelForMaskedLM if is_masked else AutoModelForCausalLM
    if config.is_encoder_decoder:
        auto_class = AutoModelForSeq2SeqLM
    return repair_reformer(auto_class.from_pretrained(name)).eval()
