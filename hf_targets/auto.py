"""The one table that makes our models known to the Auto classes of Transformers."""

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from hf_targets.models.mdlm.configuration import MdlmConfig
from hf_targets.models.mdlm.model import MdlmForMaskedDiffusion
from hf_targets.models.multitoken.causal import MultiTokenForCausalLM
from hf_targets.models.multitoken.configuration import MultiTokenConfig
from hf_targets.models.phrases.configuration import DynamicVocabConfig
from hf_targets.models.phrases.model import DynamicVocabForCausalLM

MODELS = [
    (AutoModelForCausalLM, MultiTokenConfig, MultiTokenForCausalLM),
    (AutoModelForCausalLM, DynamicVocabConfig, DynamicVocabForCausalLM),
    (AutoModelForMaskedLM, MdlmConfig, MdlmForMaskedDiffusion),
]


def register() -> None:
    """Register every configuration and model; `import hf_targets` has done it."""
    for auto_class, config_class, model_class in MODELS:
        AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
        auto_class.register(config_class, model_class, exist_ok=True)
