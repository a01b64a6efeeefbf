"""Richer training targets than the next token, for Hugging Face Transformers."""

from importlib import import_module
from importlib.metadata import version

from hf_targets.auto import register

__version__ = version("hf-targets")

_HOMES = {
    "MultiTokenConfig": "hf_targets.models.multitoken.configuration",
    "MultiTokenForCausalLM": "hf_targets.models.multitoken.causal",
    "MultiTokenTrainer": "hf_targets.training.multitoken",
    "MultiTokenTrainingArguments": "hf_targets.training.arguments",
    "load_corpus": "hf_targets.data.corpora",
    "pack_blocks": "hf_targets.data.blocks",
    "train_bpe_tokenizer": "hf_targets.data.tokenization",
    "word_level_tokenizer": "hf_targets.data.tokenization",
}
__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hf_targets' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]


register()
