"""Richer training targets than the next token, for Hugging Face Transformers."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from hf_targets.auto import register

if TYPE_CHECKING:  # for editors and type checkers; at run time a name is imported when it is first asked for
    from hf_targets.curves.configuration import CurveConfig
    from hf_targets.curves.sentence_curve import SentenceCurve
    from hf_targets.data.blocks import pack_blocks
    from hf_targets.data.corpora import load_corpus
    from hf_targets.data.tokenization import train_bpe_tokenizer, word_level_tokenizer
    from hf_targets.masked_diffusion.arguments import DiffusionTrainingArguments
    from hf_targets.masked_diffusion.configuration import MdlmConfig
    from hf_targets.masked_diffusion.model import MdlmForMaskedDiffusion
    from hf_targets.masked_diffusion.sampling.output import MaskedDiffusionGenerationOutput
    from hf_targets.masked_diffusion.sampling.streaming import CanvasStreamer, CanvasTrace
    from hf_targets.masked_diffusion.trainer import DiffusionTrainer
    from hf_targets.multitoken.arguments import MultiTokenTrainingArguments
    from hf_targets.multitoken.causal import MultiTokenForCausalLM
    from hf_targets.multitoken.configuration import MultiTokenConfig
    from hf_targets.multitoken.drafting.output import DraftedGenerationOutput
    from hf_targets.multitoken.medusa import MedusaReport, load_medusa_heads, save_medusa_for_vllm
    from hf_targets.multitoken.trainer import MultiTokenTrainer
    from hf_targets.phrases.arguments import DynamicVocabTrainingArguments
    from hf_targets.phrases.batches.collator import PhraseCollator
    from hf_targets.phrases.configuration import DynamicVocabConfig
    from hf_targets.phrases.decoding.schedule import PhraseSchedule
    from hf_targets.phrases.encoder import PhraseEncoder
    from hf_targets.phrases.mining.constituency import ConstituencyPhrases
    from hf_targets.phrases.mining.forward_maximum_matching import ForwardMaximumMatching
    from hf_targets.phrases.mining.ngrams import TokenNgrams, WordNgrams
    from hf_targets.phrases.model import DynamicVocabForCausalLM
    from hf_targets.phrases.trainer import DynamicVocabTrainer
    from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
    from hf_targets.retrieval.documents import DocumentRetriever
    from hf_targets.retrieval.vector_index import PhraseIndex

__version__ = version("hf-targets")

_HOMES = {
    "data.blocks": ["pack_blocks"],
    "phrases.mining.constituency": ["ConstituencyPhrases"],
    "data.corpora": ["load_corpus"],
    "phrases.mining.forward_maximum_matching": ["ForwardMaximumMatching"],
    "phrases.mining.ngrams": ["TokenNgrams", "WordNgrams"],
    "phrases.vocabulary.vocabulary": ["PhraseVocabulary"],
    "phrases.batches.collator": ["PhraseCollator"],
    "data.tokenization": ["train_bpe_tokenizer", "word_level_tokenizer"],
    "masked_diffusion.sampling.output": ["MaskedDiffusionGenerationOutput"],
    "masked_diffusion.sampling.streaming": ["CanvasStreamer", "CanvasTrace"],
    "multitoken.drafting.output": ["DraftedGenerationOutput"],
    "phrases.decoding.schedule": ["PhraseSchedule"],
    "curves.configuration": ["CurveConfig"],
    "curves.sentence_curve": ["SentenceCurve"],
    "masked_diffusion.configuration": ["MdlmConfig"],
    "masked_diffusion.model": ["MdlmForMaskedDiffusion"],
    "multitoken.causal": ["MultiTokenForCausalLM"],
    "multitoken.configuration": ["MultiTokenConfig"],
    "multitoken.medusa": ["MedusaReport", "load_medusa_heads", "save_medusa_for_vllm"],
    "phrases.configuration": ["DynamicVocabConfig"],
    "phrases.encoder": ["PhraseEncoder"],
    "phrases.model": ["DynamicVocabForCausalLM"],
    "retrieval.documents": ["DocumentRetriever"],
    "retrieval.vector_index": ["PhraseIndex"],
    "masked_diffusion.arguments": ["DiffusionTrainingArguments"],
    "multitoken.arguments": ["MultiTokenTrainingArguments"],
    "phrases.arguments": ["DynamicVocabTrainingArguments"],
    "masked_diffusion.trainer": ["DiffusionTrainer"],
    "multitoken.trainer": ["MultiTokenTrainer"],
    "phrases.trainer": ["DynamicVocabTrainer"],
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
