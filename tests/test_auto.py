"""Our models through the Auto classes of Transformers."""

import pytest
from transformers import AutoConfig, AutoModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import hf_targets
from hf_targets.auto import models_of


@pytest.mark.parametrize(("auto_class", "model"), [entry[:2] for entry in models_of(hf_targets.TARGETS)])
def test_the_table_gives_each_model_its_own_configuration_and_auto_classes(auto_class, model):
    config = model.config_class
    assert CONFIG_MAPPING[config.model_type] is config is getattr(hf_targets, config.__name__)
    assert auto_class._model_mapping[config] is model is getattr(hf_targets, model.__name__)
    assert AutoModel._model_mapping[config].config_class is config
    assert type(AutoConfig.for_model(config.model_type)) is config
