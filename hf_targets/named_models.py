"""Models that are loaded by a name, and checks that they are there, whole, and have their own tokenizer."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.peft_utils import find_adapter_config_file

from hf_targets.backbones.reformer.repair import repair_reformer


@contextmanager
def model_at(name: str | os.PathLike[str], kind: str, way_out: str) -> Iterator[None]:
    """Tell in one sentence that a model cannot be loaded, for the calls of `from_pretrained` in the `with` block.

    Args:
        kind: Of model, such as "reader".
        way_out: What to do instead.
    Raises:
        ValueError: If Transformers finds no model, or none that it knows.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        raise ValueError(f"there is no {kind} at {str(name)!r} ({str(error).splitlines()[0]}); {way_out}") from error


def load_language_model(name: str | os.PathLike[str]) -> Any:
    """Return a model with its output embeddings, in evaluation mode, whatever it predicts: causal, masked, or of pairs.

    Raises:
        ValueError: If there is none of this name.
    """
    with model_at(name, "language model", "give a folder that save_pretrained wrote, or a name on the Hub"):
        adapter = find_adapter_config_file(str(name))
        base = name if adapter is None else json.loads(Path(adapter).read_text())["base_model_name_or_path"]
        config = AutoConfig.from_pretrained(base)
        is_masked = any(one.endswith("ForMaskedLM") or "Mdlm" in one for one in config.architectures or [])
        auto_class: Any = AutoModelForMaskedLM if is_masked else AutoModelForCausalLM
        auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else auto_class
        return repair_reformer(auto_class.from_pretrained(name)).eval()


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, name: str | os.PathLike[str]) -> None:
    """Check that a tokenizer is the model's own: without its files Transformers makes one that knows no word.

    Raises:
        ValueError: If it has less than half as many tokens as the model.
    """
    vocab_size = model.get_input_embeddings().weight.shape[0]  # pyright: ignore[reportIndexIssue]
    if 2 * len(tokenizer) < vocab_size:
        raise ValueError(
            f"{name} has a model of {vocab_size} tokens and a tokenizer of {len(tokenizer)}, as where the tokenizer's "
            "files are missing; put them there, as tokenizer.save_pretrained writes them"
        )


def check_whole(info: Mapping[str, Any], name: str | os.PathLike[str], kind: str) -> None:
    """Check that no weight of a model was made anew.

    Args:
        info: What `from_pretrained(..., output_loading_info=True)` returns beside the model.
        kind: Of model, such as "reader".
    Raises:
        ValueError: If one was.
    """
    if missing := sorted(info["missing_keys"]):
        raise ValueError(
            f"{name} is no trained {kind}: it has no weights for {', '.join(missing[:3])}; give a model that was "
            "trained for this"
        )
