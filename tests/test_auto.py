"""Our models through the Auto classes of Transformers."""

import pytest
from transformers import AutoConfig, AutoModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import hf_targets
from hf_targets.auto import MODELS
from tests.masked_diffusion.models import make_mdlm
from tests.programs import LIBRARIES, server
from tests.tiny_models import make_any

KINDS = {"multitoken": "AutoModelForCausalLM", "dynamic_vocab": "AutoModelForCausalLM", "mdlm": "AutoModelForMaskedLM"}
LOAD = """
import sys, transformers, torch, hf_targets
for kind, auto in zip(sys.argv[2::2], sys.argv[3::2]):
    folder = f"{sys.argv[1]}/{kind}"
    config = transformers.AutoConfig.from_pretrained(folder)
    whole, features = (getattr(transformers, one).from_pretrained(folder) for one in (auto, "AutoModel"))
    held = (whole if kind == "mdlm" else whole.base_model).state_dict()
    assert all(torch.equal(weight, held[name]) for name, weight in features.state_dict().items())
    assert type(getattr(transformers, auto).from_config(config)) is type(whole)
    print(type(config).__name__, type(whole).__name__, type(features).__name__)
"""


def test_a_process_that_imports_the_package_loads_its_checkpoints_by_the_auto_classes(tmp_path):
    make_any("gpt2", "difference").save_pretrained(tmp_path / "multitoken")
    make_any("gpt2", "phrases").save_pretrained(tmp_path / "dynamic_vocab")
    make_mdlm().save_pretrained(tmp_path / "mdlm")
    (done,) = server(*LIBRARIES).run(LOAD, tmp_path, *(part for kind in KINDS.items() for part in kind))
    assert done.stdout.splitlines() == [
        "MultiTokenConfig MultiTokenForCausalLM GPT2Model",
        "DynamicVocabConfig DynamicVocabForCausalLM GPT2Model",
        "MdlmConfig MdlmForMaskedDiffusion MdlmModel",
    ], done.stderr


@pytest.mark.parametrize(("auto_class", "model"), [entry[:2] for entry in MODELS])
def test_the_table_gives_each_model_its_own_configuration_and_auto_classes(auto_class, model):
    config = model.config_class
    assert CONFIG_MAPPING[config.model_type] is config is getattr(hf_targets, config.__name__)
    assert auto_class._model_mapping[config] is model is getattr(hf_targets, model.__name__)
    assert AutoModel._model_mapping[config].config_class is config
    assert type(AutoConfig.for_model(config.model_type)) is config
