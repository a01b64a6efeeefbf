import sys
from dataclasses import dataclass, field

import pytest

from hf_targets import HEADS, MINERS, SAMPLERS, parse_settings
from hf_targets.masked_diffusion.sampling.samplers import make_sampler
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


@dataclass
class Setup:
    """Settings that name a head, a sampler and a miner."""

    kind: str = field(default="mlp", metadata={"help": "Head."})
    phrases: str = field(default="words", metadata={"help": "Miner."})
    sampler: str = field(default="cached", metadata={"help": "Sampler."})

    def __post_init__(self) -> None:
        MINERS[self.phrases]
        settings_of(self.kind)
        make_sampler(self.sampler)


NAMED = ["--kind", "mine", "--phrases", "pairs", "--sampler", "fast"]


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


def test_what_a_plugin_file_registers_can_be_named_in_settings(plugin):
    for name, told in (("kind", "draft heads"), ("phrases", "phrases"), ("sampler", "sampler")):
        value = NAMED[NAMED.index(f"--{name}") + 1]
        with pytest.raises(ValueError, match=f"{told} must be one of .*, got '{value}'"):
            parse_settings(Setup, arguments=[f"--{name}", value])
    (setup,) = parse_settings(Setup, arguments=[*NAMED, "--plugins", str(plugin)])
    assert (setup.kind, setup.phrases, setup.sampler) == ("mine", "pairs", "fast")
    assert setup.make_sampler(8).num_steps == 8
    assert sys.modules["hf_targets_plugin_my_plugin"].Mine is HEADS["mine"]


def test_a_settings_file_may_name_plugins_and_a_second_import_changes_nothing(plugin, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text(f"plugins: [{plugin}]\nkind: mine\n")
    assert parse_settings(Setup, arguments=[str(file)])[0].kind == "mine"
    first = HEADS["mine"]
    assert parse_settings(Setup, arguments=[str(file)])[0].kind == "mine"
    assert HEADS["mine"] is first


def test_a_plugin_may_be_a_module_that_python_finds(plugin, monkeypatch):
    monkeypatch.syspath_prepend(str(plugin.parent))
    assert parse_settings(Setup, arguments=[*NAMED, "--plugins", "my_plugin"])[0].kind == "mine"


def test_a_plugin_that_registers_a_taken_name_is_told_with_its_own_and_a_broken_one_raises_as_it_is(tmp_path):
    taken, broken = tmp_path / "my_taken.py", tmp_path / "my_broken.py"
    taken.write_text("from hf_targets import HEADS, Head\nHEADS.register('mlp', type('Other', (Head,), {}))\n")
    broken.write_text("import my_missing_dependency\n")
    with pytest.raises(ValueError, match=r"plugins: .*my_taken\.py: .*Other"):
        import_plugins([str(taken)])
    with pytest.raises(ModuleNotFoundError, match="my_missing_dependency"):
        import_plugins([str(broken)])
    assert not [name for name in sys.modules if name.startswith("hf_targets_plugin_")]


def test_two_files_of_one_name_are_refused(plugin, tmp_path):
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / plugin.name
    other.write_text("")
    with pytest.raises(ValueError, match=r"a plug-in of this name was imported from .*; rename one of the files"):
        import_plugins([str(plugin), str(other)])
