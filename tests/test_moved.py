import json
import pickle
import subprocess
import sys
from importlib import import_module

import pytest
import torch

import hf_targets
from hf_targets.moved import _MODULES, _RENAMED, moved_name, new_place
from hf_targets.phrases.vocabulary.store import PhraseStore
from tests.masked_diffusion.models import make_mdlm

PLACES = ("hf_targets.multitoken", "hf_targets.training")  # of arguments: now, then
OLD = [
    *_MODULES,
    "models.multitoken.causal",
    "models.phrases.model",
    "models.mdlm.layers",
    "models.curves.k_curves",
    "models.wrapping",
    "decoding.multitoken.rows",
    "decoding.phrases.table",
    "decoding.masked_diffusion.canvas",
]


@pytest.mark.parametrize("old", OLD)
def test_a_module_of_the_old_layout_has_what_the_new_one_has(old):
    for name in [name for name in sys.modules if new_place(name)]:
        del sys.modules[name]
    with pytest.warns(DeprecationWarning, match=f"hf_targets.{old} is hf_targets"):
        module = import_module(f"hf_targets.{old}")
    real = import_module(str(new_place(f"hf_targets.{old}")))
    defined = [name for name, value in vars(real).items() if getattr(value, "__module__", None) == real.__name__]
    own = [name for name in defined if name != "__getattr__"]
    assert own
    assert all(getattr(module, name) is getattr(real, name) for name in own)


def test_arguments_of_targets_are_found_where_pickles_name_them():
    with pytest.warns(DeprecationWarning, match="is hf_targets.MultiTokenTrainingArguments now"):
        found = moved_name("hf_targets.training.arguments", "MultiTokenTrainingArguments")
    assert found is hf_targets.MultiTokenTrainingArguments
    with pytest.warns(DeprecationWarning, match="DiffusionTrainingArguments"):
        from hf_targets.training.arguments import DiffusionTrainingArguments
    assert DiffusionTrainingArguments is hf_targets.DiffusionTrainingArguments


def test_an_index_of_phrases_is_found_in_the_module_of_vectors():
    with pytest.warns(DeprecationWarning, match=r"retrieval\.vector_index\.PhraseIndex is hf_targets\.PhraseIndex now"):
        from hf_targets.retrieval.vector_index import PhraseIndex
    assert PhraseIndex is hf_targets.PhraseIndex


def test_training_arguments_that_were_pickled_then_are_read(tmp_path):
    args = hf_targets.MultiTokenTrainingArguments(str(tmp_path), use_cpu=True, head_warmup_steps=3)
    now, then = (f"{module}.arguments\nMultiTokenTrainingArguments".encode() for module in PLACES)
    content = pickle.dumps(args, protocol=2)
    assert now in content
    with pytest.warns(DeprecationWarning, match="is hf_targets.MultiTokenTrainingArguments now"):
        read = pickle.loads(content.replace(now, then))
    assert type(read) is type(args) and read.head_warmup_steps == 3


@pytest.mark.parametrize(("module", "old"), [(module, old) for module, names in _RENAMED.items() for old in names])
def test_a_renamed_name_is_found_under_its_old_name_with_a_warning(module, old):
    home = import_module(f"hf_targets.{module}")
    new = _RENAMED[module][old]
    with pytest.warns(DeprecationWarning, match=f"hf_targets.{module}.{old} is hf_targets.{module}.{new} now"):
        assert getattr(home, old) is getattr(home, new)


def test_what_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"hf_targets\.nothing"):
        import_module("hf_targets.nothing")
    with pytest.raises(ModuleNotFoundError, match="nothing"):
        import_module("hf_targets.models.nothing")
    with pytest.raises(ImportError, match="Nothing"):
        from hf_targets.training.arguments import Nothing  # noqa: F401
    assert new_place("hf_targets.multitoken.causal") is None
    assert new_place("other.models.wrapping") is None


def test_a_program_of_the_old_layout_still_runs():
    command = [sys.executable, "-W", "ignore", "-m", "hf_targets.models.llama2c", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "Convert a model of llama2.c" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("hf_targets.models.zero_linear", "ZeroLinear", "ZeroInitLinear"),
        ("hf_targets.decoding.multitoken.past", "PastPredictions", "HiddenStateCache"),
        ("hf_targets.decoding.phrases.run", "PhraseRun", "PhraseGenerationState"),
        ("hf_targets.models.mdlm.original", "OriginalLayout", "PublishedLayout"),
    ],
)
def test_a_class_of_the_old_layout_is_found_under_its_old_name(module, old, new):
    sys.modules.pop(module, None)
    with pytest.warns(DeprecationWarning, match="now"):
        found = getattr(import_module(module), old)
    assert found.__name__ == new


def test_renamed_methods_still_work():
    model = make_mdlm()
    with pytest.warns(DeprecationWarning, match="to_original is to_published now"):
        tensors = model.to_original()
    heads, mask = model.config.num_attention_heads, model.config.mask_token_id
    with pytest.warns(DeprecationWarning, match="from_original is from_published now"):
        again = type(model).from_original(tensors, mask_token_id=mask, num_attention_heads=heads)
    assert torch.equal(again.backbone.vocab_embed.weight, model.backbone.vocab_embed.weight)
    table = PhraseStore(vocab_size=20)
    table.add_token_ids([[3, 4]])
    with pytest.warns(DeprecationWarning, match="contract is merge_phrases now"):
        assert table.contract([2, 3, 4]) == table.merge_phrases([2, 3, 4]) == [2, 20]


def test_separate_output_heads_are_read_under_their_old_name(tmp_path):
    config = hf_targets.MultiTokenConfig(target="embedding", own_outputs=True)
    assert config.separate_output_heads and config.own_outputs
    fields = {key: value for key, value in config.to_dict().items() if key != "separate_output_heads"}
    (tmp_path / "config.json").write_text(json.dumps({**fields, "own_outputs": True}))
    assert hf_targets.MultiTokenConfig.from_pretrained(tmp_path).separate_output_heads
    with pytest.raises(ValueError, match='separate_output_heads=True needs target="embedding"'):
        hf_targets.MultiTokenConfig(own_outputs=True)


def test_a_configuration_pickled_under_the_old_name_keeps_its_heads():
    config = hf_targets.MultiTokenConfig(target="embedding")
    state = {**config.__dict__, "own_outputs": True}
    del state["separate_output_heads"]
    config.__setstate__(state)
    assert config.separate_output_heads and config.own_outputs


def test_where_a_class_is_found_is_no_field_of_a_configuration():
    for cls in (hf_targets.MultiTokenConfig, hf_targets.DynamicVocabConfig, hf_targets.MdlmConfig):
        fields = json.loads(cls().to_json_string())
        assert "auto_map" in fields
        assert cls(**fields).to_dict() == cls().to_dict()
