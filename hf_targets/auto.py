"""The table of all models that are registered with the Auto classes of Transformers.

The table holds names: `import hf_targets` imports neither a model nor Transformers. The entries are added to the Auto
classes once these are imported, and a model is imported when an Auto class is asked for it.
"""

from functools import partial
from pkgutil import resolve_name
from typing import Any, NamedTuple

from hf_targets.after_import import after_import
from hf_targets.lazy_entries import LazyEntries


class Model(NamedTuple):
    """A model type and its classes, each named `module:class`."""

    model_type: str
    config: str
    auto_class: str
    model: str
    features: str | None = None
    """The class for `AutoModel`; None: the model without its output embedding."""
    others: tuple[tuple[str, str], ...] = ()
    """Other Auto classes, and the classes for them."""


MODELS = (
    Model(
        model_type="multitoken",
        config="hf_targets.multitoken.configuration:MultiTokenConfig",
        auto_class="AutoModelForCausalLM",
        model="hf_targets.multitoken.causal:MultiTokenForCausalLM",
    ),
    Model(
        model_type="multitoken_seq2seq",
        config="hf_targets.multitoken.seq2seq_configuration:MultiTokenSeq2SeqConfig",
        auto_class="AutoModelForSeq2SeqLM",
        model="hf_targets.multitoken.seq2seq:MultiTokenForSeq2SeqLM",
    ),
    Model(
        model_type="multitoken_masked",
        config="hf_targets.multitoken.masked_configuration:MultiTokenMaskedConfig",
        auto_class="AutoModelForMaskedLM",
        model="hf_targets.multitoken.masked:MultiTokenForMaskedLM",
    ),
    Model(
        model_type="dynamic_vocab",
        config="hf_targets.phrases.configuration:DynamicVocabConfig",
        auto_class="AutoModelForCausalLM",
        model="hf_targets.phrases.model:DynamicVocabForCausalLM",
    ),
    Model(
        model_type="mdlm",
        config="hf_targets.masked_diffusion.configuration:MdlmConfig",
        auto_class="AutoModelForMaskedLM",
        model="hf_targets.masked_diffusion.model:MdlmForMaskedDiffusion",
        features="hf_targets.masked_diffusion.features:MdlmModel",
    ),
    Model(
        model_type="difformer",
        config="hf_targets.gaussian_diffusion.configuration:DifformerConfig",
        auto_class="AutoModelForSeq2SeqLM",
        model="hf_targets.gaussian_diffusion.model:DifformerForConditionalGeneration",
        features="hf_targets.gaussian_diffusion.features:DifformerModel",
    ),
    Model(
        model_type="semi_autoregressive",
        config="hf_targets.semi_autoregressive.configuration:SemiAutoregressiveConfig",
        auto_class="AutoModelForCausalLM",
        model="hf_targets.semi_autoregressive.model:SemiAutoregressiveForCausalLM",
    ),
    Model(
        model_type="awd_lstm",
        config="hf_targets.awd_lstm.configuration:AwdLstmConfig",
        auto_class="AutoModelForCausalLM",
        model="hf_targets.awd_lstm.model:AwdLstmForCausalLM",
        features="hf_targets.awd_lstm.backbone:AwdLstmModel",
    ),
    Model(
        model_type="crammed_bert",
        config="hf_targets.crammed_bert.configuration:CrammedBertConfig",
        auto_class="AutoModelForMaskedLM",
        model="hf_targets.crammed_bert.masked:CrammedBertForMaskedLM",
        features="hf_targets.crammed_bert.backbone:CrammedBertModel",
        others=(
            (
                "AutoModelForSequenceClassification",
                "hf_targets.crammed_bert.classifier:CrammedBertForSequenceClassification",
            ),
        ),
    ),
    Model(
        model_type="tensorized_transformer",
        config="hf_targets.tensorized_transformer.configuration:TensorizedTransformerConfig",
        auto_class="AutoModelForCausalLM",
        model="hf_targets.tensorized_transformer.model:TensorizedTransformerForCausalLM",
        features="hf_targets.tensorized_transformer.backbone:TensorizedTransformerModel",
    ),
)


def register() -> None:
    """Register every configuration and model with the Auto classes; `import hf_targets` calls this."""
    after_import("transformers.models.auto.configuration_auto", _register_configurations)
    after_import("transformers.models.auto.modeling_auto", _register_models)


def _register_configurations(configuration_auto: Any) -> None:
    entries = _lazy_entries(configuration_auto.CONFIG_MAPPING)
    for model in MODELS:
        entries.add(model.model_type, partial(_configuration, model))


def _register_models(modeling_auto: Any) -> None:
    for model in MODELS:
        others = [(auto_class, partial(_other, name=name)) for auto_class, name in model.others]
        for auto_class, load in ((model.auto_class, _model), ("AutoModel", _features), *others):
            mapping = getattr(modeling_auto, auto_class)._model_mapping
            _lazy_entries(mapping).add(model.config, partial(load, model))
        if model.auto_class == "AutoModelForCausalLM":  # Trainer's label smoother shifts labels of these classes only
            names = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
            names[model.model_type] = model.model.partition(":")[2]


def _lazy_entries(mapping: Any) -> LazyEntries:
    """Return what was registered with a mapping of Transformers, able to import entries later from now on."""
    if not isinstance(mapping._extra_content, LazyEntries):
        mapping._extra_content = LazyEntries(mapping._extra_content)
    return mapping._extra_content


def _configuration(model: Model) -> tuple[str, type]:
    return model.model_type, resolve_name(model.config)


def _model(model: Model) -> tuple[type, type]:
    return resolve_name(model.config), resolve_name(model.model)


def _other(model: Model, name: str) -> tuple[type, type]:
    return resolve_name(model.config), resolve_name(name)


def _features(model: Model) -> tuple[type, type]:
    from hf_targets.backbones.headless import headless

    config, whole = _model(model)
    return config, headless(whole) if model.features is None else resolve_name(model.features)
