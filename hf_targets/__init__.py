"""Richer training targets than the next token, for Hugging Face Transformers."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from hf_targets.auto import register

if TYPE_CHECKING:  # for editors and type checkers; at run time a name is imported when it is first asked for
    from hf_targets.data.blocks import pack_blocks
    from hf_targets.data.corpora import load_corpus
    from hf_targets.data.tokenization import train_bpe_tokenizer, word_level_tokenizer
    from hf_targets.decoding.multitoken.output import DraftedGenerationOutput
    from hf_targets.models.multitoken.causal import MultiTokenForCausalLM
    from hf_targets.models.multitoken.configuration import MultiTokenConfig
    from hf_targets.models.multitoken.medusa import MedusaReport, load_medusa_heads, save_medusa_for_vllm
    from hf_targets.training.arguments import MultiTokenTrainingArguments
    from hf_targets.training.multitoken import MultiTokenTrainer

__version__ = version("hf-targets")

_HOMES = {
    "data.blocks": ["pack_blocks"],
    "data.corpora": ["load_corpus"],
    "data.tokenization": ["train_bpe_tokenizer", "word_level_tokenizer"],
    "decoding.multitoken.output": ["DraftedGenerationOutput"],
    "models.multitoken.causal": ["MultiTokenForCausalLM"],
    "models.multitoken.configuration": ["MultiTokenConfig"],
    "models.multitoken.medusa": ["MedusaReport", "load_medusa_heads", "save_medusa_for_vllm"],
    "training.arguments": ["MultiTokenTrainingArguments"],
    "training.multitoken": ["MultiTokenTrainer"],
}
__all__ = [
    "DraftedGenerationOutput",
    "MedusaReport",
    "MultiTokenConfig",
    "MultiTokenForCausalLM",
    "MultiTokenTrainer",
    "MultiTokenTrainingArguments",
    "load_corpus",
    "load_medusa_heads",
    "pack_blocks",
    "save_medusa_for_vllm",
    "train_bpe_tokenizer",
    "word_level_tokenizer",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"hf_targets.{home}"), name)
    raise AttributeError(f"module 'hf_targets' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]


register()
