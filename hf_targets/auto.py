"""The table of all models that are registered with the Auto classes of Transformers."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from hf_targets.backbones.headless import headless
from hf_targets.masked_diffusion.configuration import MdlmConfig
from hf_targets.masked_diffusion.features import MdlmModel
from hf_targets.masked_diffusion.model import MdlmForMaskedDiffusion
from hf_targets.multitoken.causal import MultiTokenForCausalLM
from hf_targets.multitoken.configuration import MultiTokenConfig
from hf_targets.phrases.configuration import DynamicVocabConfig
from hf_targets.phrases.model import DynamicVocabForCausalLM

MODELS = [
    (AutoModelForCausalLM, MultiTokenConfig, MultiTokenForCausalLM),
    (AutoModelForCausalLM, DynamicVocabConfig, DynamicVocabForCausalLM),
    (AutoModelForMaskedLM, MdlmConfig, MdlmForMaskedDiffusion),
    (AutoModel, MultiTokenConfig, headless(MultiTokenForCausalLM)),
    (AutoModel, DynamicVocabConfig, headless(DynamicVocabForCausalLM)),
    (AutoModel, MdlmConfig, MdlmModel),
]


def register() -> None:
    """Register every configuration and model; `import hf_targets` calls this."""
    for auto_class, config_class, model_class in MODELS:
        AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
        auto_class.register(config_class, model_class, exist_ok=True)
        if auto_class is AutoModelForCausalLM:  # Trainer's label smoother shifts labels of these classes only
            MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config_class.model_type] = model_class.__name__
