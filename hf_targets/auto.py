"""The table of all models that are registered with the Auto classes of Transformers, when `hf_targets` is imported."""

from importlib import import_module
from typing import Any

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.pipelines import SUPPORTED_TASKS

from hf_targets.awd_lstm.backbone import AwdLstmModel
from hf_targets.awd_lstm.model import AwdLstmForCausalLM
from hf_targets.backbones.wrapping import headless
from hf_targets.baselines.copy_generator import CopyGenerator
from hf_targets.baselines.retro import RetroForCausalLM
from hf_targets.crammed_bert.backbone import CrammedBertModel
from hf_targets.crammed_bert.model import CrammedBertForMaskedLM, CrammedBertForSequenceClassification
from hf_targets.gaussian_diffusion.model import DifformerForConditionalGeneration, DifformerModel
from hf_targets.masked_diffusion.model import MdlmForMaskedDiffusion, MdlmModel
from hf_targets.multitoken.causal import MultiTokenForCausalLM
from hf_targets.multitoken.masked import MultiTokenForMaskedLM
from hf_targets.multitoken.seq2seq import MultiTokenForSeq2SeqLM
from hf_targets.phrases.model import DynamicVocabForCausalLM
from hf_targets.semi_autoregressive.model import SemiAutoregressiveForCausalLM
from hf_targets.tensorized_transformer.backbone import TensorizedTransformerModel
from hf_targets.tensorized_transformer.model import TensorizedTransformerForCausalLM

MODELS: tuple[tuple[Any, type, Any], ...] = (
    (AutoModelForCausalLM, MultiTokenForCausalLM, None),
    (AutoModelForSeq2SeqLM, MultiTokenForSeq2SeqLM, None),
    (AutoModelForMaskedLM, MultiTokenForMaskedLM, None),
    (AutoModelForCausalLM, DynamicVocabForCausalLM, None),
    (AutoModelForMaskedLM, MdlmForMaskedDiffusion, MdlmModel),
    (AutoModelForSeq2SeqLM, DifformerForConditionalGeneration, DifformerModel),
    (AutoModelForCausalLM, SemiAutoregressiveForCausalLM, None),
    (AutoModelForCausalLM, AwdLstmForCausalLM, AwdLstmModel),
    (AutoModelForMaskedLM, CrammedBertForMaskedLM, CrammedBertModel),
    (AutoModelForCausalLM, TensorizedTransformerForCausalLM, TensorizedTransformerModel),
    (AutoModelForCausalLM, CopyGenerator, None),
    (AutoModelForCausalLM, RetroForCausalLM, None),
)
"""Each model's Auto class, the model, and its class for `AutoModel`; None: the model without its output embedding."""


def register() -> None:
    """Register every configuration and model with the Auto classes; `import hf_targets` calls this."""
    for auto_class, model, features in MODELS:
        config = model.config_class
        AutoConfig.register(config.model_type, config, exist_ok=True)
        auto_class.register(config, model, exist_ok=True)
        AutoModel.register(config, headless(model) if features is None else features, exist_ok=True)
        if auto_class is AutoModelForCausalLM:  # the Trainer shifts labels for label smoothing of these classes only
            MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type] = model.__name__
    classifier = CrammedBertForSequenceClassification
    AutoModelForSequenceClassification.register(classifier.config_class, classifier, exist_ok=True)
    # By its name, so that the class is imported with the first pipeline; `register_pipeline` warns of every import.
    module, name = "hf_targets.phrases.pipeline", "PhraseTextGenerationPipeline"
    task = SUPPORTED_TASKS["text-generation"]
    takes_name = isinstance(task["impl"], str)  # from Transformers 5.23 on
    task["impl"] = f"{module}.{name}" if takes_name else getattr(import_module(module), name)
