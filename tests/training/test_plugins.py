import sys

import pytest

from hf_targets import HEADS, MINERS, SAMPLERS
from hf_targets.training.plugins import import_plugins
from lab.draft_heads import settings_of

PLUGIN = """
from dataclasses import dataclass

from hf_targets import HEADS, MINERS, SAMPLERS, TokenNgrams
from hf_targets.multitoken.heads import MlpHead
from hf_targets.masked_diffusion.sampling.ancestral import Cached

class Mine(MlpHead): ...
class Pairs(TokenNgrams): ...
@dataclass(frozen=True)
class Fast(Cached): ...

HEADS.register("mine", Mine)
MINERS.register("pairs", Pairs)
SAMPLERS.register("fast", Fast)
"""


@pytest.fixture(autouse=True)
def registries(monkeypatch):
    """Leave the registries and modules as they were."""
    for registry in (HEADS, MINERS, SAMPLERS):
        monkeypatch.setattr(registry, "_classes", dict(registry._classes))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("hf_targets_plugin_", "my_")):
            del sys.modules[name]


@pytest.fixture
def plugin(tmp_path):
    file = tmp_path / "my_plugin.py"
    file.write_text(PLUGIN)
    return file


@pytest.mark.parametrize("as_file", [True, False])
def test_what_a_plugin_registers_is_known_and_a_second_import_changes_nothing(as_file, plugin, monkeypatch):
    monkeypatch.syspath_prepend(str(plugin.parent))
    found = []
    for _ in range(2):
        import_plugins([str(plugin) if as_file else "my_plugin"])
        found.append((HEADS["mine"], MINERS["pairs"], SAMPLERS["fast"]))
    assert found[0] == found[1]
    assert settings_of("mine")["head"] == "mine"


def test_a_plugin_that_registers_a_taken_name_is_told_with_its_own_and_a_broken_one_raises_as_it_is(tmp_path):
    taken, broken = tmp_path / "my_taken.py", tmp_path / "my_broken.py"
    taken.write_text("from hf_targets import HEADS, Head\nHEADS.register('mlp', type('Other', (Head,), {}))\n")
    broken.write_text("import my_missing_dependency\n")
    with pytest.raises(ValueError, match="my_taken"):
        import_plugins([str(taken)])
    with pytest.raises(ModuleNotFoundError, match="my_missing_dependency"):
        import_plugins([str(broken)])
    assert not [
        name for name in sys.modules if name.startswith(("hf_targets_plugin_my_taken", "hf_targets_plugin_my_broken"))
    ]


def test_two_files_of_one_name_are_refused(plugin, tmp_path):
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / plugin.name
    other.write_text("")
    with pytest.raises(ValueError, match="rename"):
        import_plugins([str(plugin), str(other)])
