"""Registers all models with the Auto classes of Transformers, when `hf_targets` is imported."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import transformers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.pipelines import SUPPORTED_TASKS

from hf_targets.backbones.wrapping import headless


def models_of(targets: Iterable[str]) -> list[tuple[Any, Any, Any]]:
    """Return the models of targets, by the names of their folders: the Auto class, the model, what `AutoModel` loads.

    The `MODELS` of a target has these as names: of the Auto class, and of modules in the folder with a class each; None
    as the last one: the model without its output embedding. A target without models has none.
    """
    found = []
    for target in targets:
        for auto_class, *names in getattr(import_module(f"hf_targets.{target}"), "MODELS", ()):
            model, features = (name and _class_of(target, name) for name in names)
            found.append((getattr(transformers, auto_class), model, features or headless(model)))
    return found


def register(targets: Iterable[str]) -> None:
    """Register every configuration and model of targets with the Auto classes; `import hf_targets` calls this."""
    for auto_class, model, features in models_of(targets):
        config = model.config_class
        AutoConfig.register(config.model_type, config, exist_ok=True)
        auto_class.register(config, model, exist_ok=True)
        AutoModel.register(config, features, exist_ok=True)
        if auto_class is AutoModelForCausalLM:  # the Trainer shifts labels for label smoothing of these classes only
            MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type] = model.__name__
    # By its name, so that the class is imported with the first pipeline; `register_pipeline` warns of every import.
    module, name = "hf_targets.phrases.pipeline", "PhraseTextGenerationPipeline"
    task = SUPPORTED_TASKS["text-generation"]
    takes_name = isinstance(task["impl"], str)  # from Transformers 5.23 on
    task["impl"] = f"{module}.{name}" if takes_name else getattr(import_module(module), name)


def _class_of(target: str, name: str) -> Any:
    module, name = name.rsplit(".", 1)
    return getattr(import_module(f"hf_targets.{target}.{module}"), name)
