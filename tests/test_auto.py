"""Our models through the Auto classes, in processes that import `hf_targets` before Transformers and after it."""

import copy
import importlib
import pickle
import sys
from itertools import chain

import pytest
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.models.auto import configuration_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import hf_targets
from hf_targets.after_import import AfterImport, after_import
from hf_targets.auto import MODELS
from hf_targets.lazy_entries import LazyEntries
from tests.masked_diffusion.models import make_mdlm
from tests.programs import LIBRARIES, server
from tests.tiny_models import make_any

KINDS = {"multitoken": "AutoModelForCausalLM", "dynamic_vocab": "AutoModelForCausalLM", "mdlm": "AutoModelForMaskedLM"}
BEFORE = {
    "nothing": ("torch",),
    "the configurations": ("transformers.modeling_utils",),
    "the models": LIBRARIES,
}
"""What a process has imported before `hf_targets`, by which Auto classes of Transformers are among it."""
LOAD = """
import hf_targets, sys, transformers
from concurrent.futures import ThreadPoolExecutor
import torch
def load(auto):
    return getattr(transformers, auto).from_pretrained(folder)
threads = ThreadPoolExecutor(4)
for kind, auto in zip(sys.argv[2::2], sys.argv[3::2]):
    folder = f"{sys.argv[1]}/{kind}"
    assert kind in transformers.models.auto.configuration_auto.CONFIG_MAPPING
    config = threads.submit(load, "AutoConfig").result()
    mapping = getattr(transformers, auto)._model_mapping
    found = set(threads.map(lambda _: mapping[type(config)], range(4)))
    whole, features = threads.submit(load, auto).result(), threads.submit(load, "AutoModel").result()
    assert found == {type(whole)} and type(whole) in mapping.values()
    held = (whole if kind == "mdlm" else whole.base_model).state_dict()
    assert all(torch.equal(weight, held[name]) for name, weight in features.state_dict().items())
    assert type(getattr(transformers, auto).from_config(config)) is type(whole)
    print(type(config).__name__, type(whole).__name__, type(features).__name__)
"""
LOADED = """\
MultiTokenConfig MultiTokenForCausalLM GPT2Model
DynamicVocabConfig DynamicVocabForCausalLM GPT2Model
MdlmConfig MdlmForMaskedDiffusion MdlmModel
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    models = {
        "multitoken": make_any("gpt2", "difference"),
        "dynamic_vocab": make_any("gpt2", "phrases"),
        "mdlm": make_mdlm(),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)
    return folder


@pytest.mark.parametrize("before", BEFORE)
def test_auto_classes_load_our_checkpoints_whether_they_were_imported_before_or_not(before, saved):
    (done,) = server(*BEFORE[before]).run(LOAD, saved, *chain(*KINDS.items()))
    assert done.stdout == LOADED, done.stderr


def test_another_model_of_transformers_is_made_without_importing_one_of_ours():
    code = """
import sys, hf_targets
from transformers import AutoModelForCausalLM, GPT2Config
AutoModelForCausalLM.from_config(GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=8))
print([name for name in sys.modules if name.startswith("hf_targets.") and name.count(".") > 1])
"""
    (done,) = server(*LIBRARIES).run(code)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("entry", MODELS, ids=[model.model_type for model in MODELS])
def test_the_table_names_each_class_with_its_own_type_and_configuration(entry):
    config = CONFIG_MAPPING[entry.model_type]
    assert config.model_type == entry.model_type
    assert f"{config.__module__}:{config.__qualname__}" == entry.config
    for auto_class in (getattr(importlib.import_module("transformers"), entry.auto_class), AutoModel):
        assert config in auto_class._model_mapping
        assert auto_class._model_mapping[config].config_class is config
        assert config in auto_class._model_mapping.keys()  # noqa: SIM118
    assert getattr(hf_targets, config.__name__) is config


def test_mappings_are_pickled_with_our_classes_and_copied():
    for mapping, key in ((CONFIG_MAPPING, "mdlm"), (AutoModelForMaskedLM._model_mapping, hf_targets.MdlmConfig)):
        for again in (pickle.loads(pickle.dumps(mapping)), copy.deepcopy(mapping)):
            assert again[key] is mapping[key] and key in again and len(again) == len(mapping)


def test_someone_elses_class_takes_the_place_of_ours_and_ours_comes_back():
    class Theirs(hf_targets.MultiTokenForCausalLM):
        pass

    config = hf_targets.MultiTokenConfig
    AutoModelForCausalLM.register(config, Theirs, exist_ok=True)
    try:
        assert AutoModelForCausalLM._model_mapping[config] is Theirs
    finally:
        hf_targets.auto.register()
    assert AutoModelForCausalLM._model_mapping[config] is hf_targets.MultiTokenForCausalLM
    assert AutoConfig.for_model("multitoken").__class__ is config


def test_an_entry_is_imported_when_it_is_asked_for_and_all_when_they_are_listed():
    imported = []

    def load(key, value):
        imported.append(key)
        return key, value

    entries = LazyEntries({"old": 0, "b": -1})
    for value, name in enumerate("abcd"):
        entries.add(name, lambda name=name, value=value: load(name, value))
    assert "a" in entries and "z" not in entries and len(entries) == 5 and imported == []
    assert entries["b"] == entries["b"] == 1 and imported == ["b"]
    entries["c"] = 7
    del entries["a"]
    assert dict(entries) == {"old": 0, "b": 1, "c": 7, "d": 3} and imported == ["b", "a", "d"]
    with pytest.raises(KeyError):
        entries["a"]


def test_an_entry_whose_import_fails_is_asked_for_again():
    entries, answers = LazyEntries({}), iter([ImportError("half a module"), ("a", 1)])

    def load():
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    entries.add("a", load)
    with pytest.raises(ImportError, match="half a module"):
        entries["a"]
    assert "a" in entries and entries["a"] == 1


def test_a_function_is_called_after_the_module_has_been_executed_and_again_after_a_reload(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    (tmp_path / "watched_module.py").write_text("first = 1\nlast = 2\n")
    seen = []
    after_import("watched_module", lambda module: seen.append(module.last))
    module = importlib.import_module("watched_module")
    assert seen == [2] and importlib.import_module("watched_module") is module
    importlib.reload(module)
    assert seen == [2, 2]
    after_import("watched_module", lambda module: seen.append(module.first))
    assert seen == [2, 2, 1]
    assert AfterImport("watched_module", seen.append).find_spec("another", None) is None
    del sys.modules["watched_module"]


def test_transformers_is_left_as_it_was_but_for_our_entries():
    assert type(CONFIG_MAPPING).__name__ == "_LazyConfigMapping"
    assert not {model.model_type for model in MODELS} & configuration_auto.CONFIG_MAPPING_NAMES.keys()
