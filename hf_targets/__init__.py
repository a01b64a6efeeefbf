"""Richer training targets than the next token, for Hugging Face Transformers."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from hf_targets.auto import register

if TYPE_CHECKING:  # for editors and type checkers; at run time a name is imported when it is first asked for
    from hf_targets.data.blocks import pack_blocks
    from hf_targets.data.constituency import ConstituencyPhrases
    from hf_targets.data.corpora import load_corpus
    from hf_targets.data.forward_maximum_matching import ForwardMaximumMatching
    from hf_targets.data.phrase_mining import TokenNgrams, WordNgrams
    from hf_targets.data.phrase_vocabulary import PhraseVocabulary
    from hf_targets.data.phrases import PhraseCollator
    from hf_targets.data.tokenization import train_bpe_tokenizer, word_level_tokenizer
    from hf_targets.decoding.masked_diffusion.output import MaskedDiffusionGenerationOutput
    from hf_targets.decoding.masked_diffusion.streaming import CanvasStreamer, CanvasTrace
    from hf_targets.decoding.multitoken.output import DraftedGenerationOutput
    from hf_targets.decoding.phrases.schedule import PhraseSchedule
    from hf_targets.models.curves.configuration import CurveConfig
    from hf_targets.models.curves.sentence_curve import SentenceCurve
    from hf_targets.models.mdlm.configuration import MdlmConfig
    from hf_targets.models.mdlm.model import MdlmForMaskedDiffusion
    from hf_targets.models.multitoken.causal import MultiTokenForCausalLM
    from hf_targets.models.multitoken.configuration import MultiTokenConfig
    from hf_targets.models.multitoken.medusa import MedusaReport, load_medusa_heads, save_medusa_for_vllm
    from hf_targets.models.phrases.configuration import DynamicVocabConfig
    from hf_targets.models.phrases.encoder import PhraseEncoder
    from hf_targets.models.phrases.model import DynamicVocabForCausalLM
    from hf_targets.retrieval.documents import DocumentRetriever
    from hf_targets.retrieval.phrases import PhraseIndex
    from hf_targets.training.arguments import (
        DiffusionTrainingArguments,
        DynamicVocabTrainingArguments,
        MultiTokenTrainingArguments,
    )
    from hf_targets.training.diffusion import DiffusionTrainer
    from hf_targets.training.multitoken import MultiTokenTrainer
    from hf_targets.training.phrases import DynamicVocabTrainer

__version__ = version("hf-targets")

_HOMES = {
    "data.blocks": ["pack_blocks"],
    "data.constituency": ["ConstituencyPhrases"],
    "data.corpora": ["load_corpus"],
    "data.forward_maximum_matching": ["ForwardMaximumMatching"],
    "data.phrase_mining": ["TokenNgrams", "WordNgrams"],
    "data.phrase_vocabulary": ["PhraseVocabulary"],
    "data.phrases": ["PhraseCollator"],
    "data.tokenization": ["train_bpe_tokenizer", "word_level_tokenizer"],
    "decoding.masked_diffusion.output": ["MaskedDiffusionGenerationOutput"],
    "decoding.masked_diffusion.streaming": ["CanvasStreamer", "CanvasTrace"],
    "decoding.multitoken.output": ["DraftedGenerationOutput"],
    "decoding.phrases.schedule": ["PhraseSchedule"],
    "models.curves.configuration": ["CurveConfig"],
    "models.curves.sentence_curve": ["SentenceCurve"],
    "models.mdlm.configuration": ["MdlmConfig"],
    "models.mdlm.model": ["MdlmForMaskedDiffusion"],
    "models.multitoken.causal": ["MultiTokenForCausalLM"],
    "models.multitoken.configuration": ["MultiTokenConfig"],
    "models.multitoken.medusa": ["MedusaReport", "load_medusa_heads", "save_medusa_for_vllm"],
    "models.phrases.configuration": ["DynamicVocabConfig"],
    "models.phrases.encoder": ["PhraseEncoder"],
    "models.phrases.model": ["DynamicVocabForCausalLM"],
    "retrieval.documents": ["DocumentRetriever"],
    "retrieval.phrases": ["PhraseIndex"],
    "training.arguments": [
        "DiffusionTrainingArguments",
        "DynamicVocabTrainingArguments",
        "MultiTokenTrainingArguments",
    ],
    "training.diffusion": ["DiffusionTrainer"],
    "training.multitoken": ["MultiTokenTrainer"],
    "training.phrases": ["DynamicVocabTrainer"],
}
__all__ = [
    "CanvasStreamer",
    "CanvasTrace",
    "ConstituencyPhrases",
    "CurveConfig",
    "DiffusionTrainer",
    "DiffusionTrainingArguments",
    "DocumentRetriever",
    "DraftedGenerationOutput",
    "DynamicVocabConfig",
    "DynamicVocabForCausalLM",
    "DynamicVocabTrainer",
    "DynamicVocabTrainingArguments",
    "ForwardMaximumMatching",
    "MaskedDiffusionGenerationOutput",
    "MdlmConfig",
    "MdlmForMaskedDiffusion",
    "MedusaReport",
    "MultiTokenConfig",
    "MultiTokenForCausalLM",
    "MultiTokenTrainer",
    "MultiTokenTrainingArguments",
    "PhraseCollator",
    "PhraseEncoder",
    "PhraseIndex",
    "PhraseSchedule",
    "PhraseVocabulary",
    "SentenceCurve",
    "TokenNgrams",
    "WordNgrams",
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
