"""Checkpoints in processes that have not imported `hf_targets`, that have, and that cannot."""

import json

import pytest
from transformers import AutoConfig

from hf_targets import MdlmConfig, MultiTokenConfig
from hf_targets.backbones.configuration import PACKAGE_IMPORT
from tests.masked_diffusion.models import make_mdlm
from tests.tiny_models import make_any

KINDS = {"heads": "AutoModelForCausalLM", "diffusion": "AutoModelForMaskedLM"}
LOAD = """
import os, sys, torch, transformers
from safetensors.torch import load_file
folder, auto = sys.argv[1], getattr(transformers, sys.argv[2])
trust = {"yes": True, "no": False, "-": None}[sys.argv[3]]
def report(model, folder=folder):
    saved, held = load_file(f"{folder}/model.safetensors"), model.state_dict()
    print(type(model).__name__, all(torch.equal(saved[name], held[name]) for name in saved))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    for name, model in {"heads": make_any("gpt2", "difference"), "diffusion": make_mdlm()}.items():
        model.save_pretrained(folder / name)
    return folder


@pytest.fixture
def run(hub):
    """Return what runs a program without `hf_targets` and without a keyboard."""
    return lambda code, *arguments: hub.run(LOAD + code, *arguments)


@pytest.mark.parametrize("kind", KINDS)
def test_with_trust_in_its_code_a_checkpoint_loads_without_the_import_and_is_saved_as_it_was(
    kind, saved, run, tmp_path
):
    code = """
model = auto.from_pretrained(folder, trust_remote_code=trust)
report(model)
model.save_pretrained(sys.argv[4])
"""
    done = run(code, saved / kind, KINDS[kind], "yes", tmp_path / "again")
    assert done.stdout.splitlines()[0].split()[1:] == ["True"], done.stderr  # DeepSpeed, where it is, writes below
    assert {path.name for path in (tmp_path / "again").iterdir()} == {path.name for path in (saved / kind).iterdir()}
    name = {"heads": "MultiTokenConfig", "diffusion": "MdlmConfig"}[kind]
    for folder in (saved / kind, tmp_path / "again"):
        named = json.loads((folder / "config.json").read_text())["auto_map"]
        assert named == {"AutoConfig": f"import_hf_targets.{name}"}


def test_without_trust_and_without_the_import_the_error_leads_to_a_file_that_says_what_to_do(saved, run):
    done = run("auto.from_pretrained(folder, trust_remote_code=trust)", saved / "heads", KINDS["heads"], "-")
    assert done.returncode == 1
    assert f"You can inspect the repository content at {saved / 'heads'}" in done.stderr
    told = (saved / "heads" / PACKAGE_IMPORT).read_text()
    assert "needs the package hf_targets" in told and "pip install" not in told  # whose name is not published there


def test_where_the_package_is_not_installed_the_error_names_it(saved, run):
    code = """
class NotInstalled:
    def find_spec(self, name, *rest):
        if name == "hf_targets":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NotInstalled())
auto.from_pretrained(folder, trust_remote_code=trust)
"""
    done = run(code, saved / "heads", KINDS["heads"], "yes")
    assert done.returncode == 1 and "needs the package hf_targets" in done.stderr
    assert "pip install" not in done.stderr


@pytest.mark.parametrize("trust", ["-", "yes"])
def test_after_the_import_a_checkpoint_loads_without_a_question_and_runs_no_code_of_its_own(
    trust, saved, run, hub, tmp_path
):
    folder = tmp_path / "saved"
    folder.symlink_to(saved / "heads")
    code = "import hf_targets\nreport(auto.from_pretrained(folder, trust_remote_code=trust))"
    done = run(code, folder, KINDS["heads"], trust)
    assert done.stdout.splitlines()[0].split()[1:] == ["True"], done.stderr  # DeepSpeed, where it is, writes below
    assert "custom code" not in done.stderr + done.stdout
    assert not list(hub.home.rglob(PACKAGE_IMPORT)), "the file was copied to be run"


def test_every_way_to_the_hub_takes_what_was_written_alone_and_loads_without_the_import(hub, tmp_path):
    (tmp_path / "run" / "data").mkdir(parents=True)
    for name in (".env", "notes.txt", "foreign.safetensors", "data/model.safetensors", "data/mine.jinja"):
        (tmp_path / "run" / name).write_text("secret")
    code = f"""
from hf_targets import MultiTokenConfig, MultiTokenForCausalLM, MultiTokenTrainer, MultiTokenTrainingArguments
from datasets import Dataset
from transformers import Trainer, TrainingArguments
from tests.small_tokenizers import BPE
from tests.tiny_models import make_any, make_backbone
MultiTokenConfig().save_pretrained({str(tmp_path / "config")!r}, push_to_hub=True, repo_id="me/config")
rows = Dataset.from_list([{{"input_ids": list(range(8)), "labels": list(range(8))}}] * 4)
options = dict(push_to_hub=True, hub_model_id="me/trained", hub_strategy="every_save", hub_always_push=True)
args = MultiTokenTrainingArguments({str(tmp_path / "run")!r}, max_steps=1, save_steps=1, use_cpu=True, **options)
BPE.chat_template = {{"default": "a", "tool_use": "b"}}
trainer = MultiTokenTrainer(make_any("gpt2", "difference"), args, train_dataset=rows, processing_class=BPE)
trainer.train()
trainer._finish_current_push()
trainer.push_to_hub()
options["hub_model_id"] = "me/plainly"
args = TrainingArguments({str(tmp_path / "plain")!r}, max_steps=1, save_steps=1, use_cpu=True, **options)
trainer = Trainer(make_any("gpt2", "difference"), args, train_dataset=rows)
trainer.train()
trainer._finish_current_push()
make_backbone("gpt2").push_to_hub("me/base")
heads = MultiTokenForCausalLM.from_base("me/base", ngram_size=2)
heads.push_to_hub("me/heads", heads_only=True)
heads.save_pretrained({str(tmp_path / "heads")!r}, heads_only=True, push_to_hub=True, repo_id="me/again")
heads.push_to_hub("me/whole")
"""
    done = hub.run(code)
    assert done.returncode == 0, done.stderr
    assert PACKAGE_IMPORT in hub.files("me/config")
    written = {"config.json", "generation_config.json", "model.safetensors", "README.md", PACKAGE_IMPORT}
    written |= {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    written |= {"additional_chat_templates/tool_use.jinja"}
    assert hub.files("me/trained").keys() - {".gitattributes"} == written
    plainly = hub.files("me/plainly")
    assert {"config.json", "model.safetensors", PACKAGE_IMPORT} <= plainly.keys()
    assert "use_cache" not in json.loads(plainly["config.json"])["backbone"], "the Trainer has set it to False"
    assert "heads.safetensors" in hub.files("me/again") and "model.safetensors" not in hub.files("me/heads")
    for name in ("me/heads", "me/again", "me/whole"):
        card = hub.files(name)["README.md"].decode()
        assert "base_model: me/base" in card and f'MultiTokenForCausalLM.from_pretrained("{name}")' in card
    pull = """
from transformers import AutoModelForCausalLM
for name in ("me/trained", "me/plainly", "me/heads", "me/whole"):
    print(type(AutoModelForCausalLM.from_pretrained(name, trust_remote_code=True)).__name__)
"""
    done = hub.run(pull)
    assert set(done.stdout.split()) == {"MultiTokenForCausalLM"}, done.stderr


def test_a_configuration_saved_alone_has_the_file_too_and_does_not_keep_its_mark(tmp_path):
    MultiTokenConfig().save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"] == {
        "AutoConfig": f"{PACKAGE_IMPORT.removesuffix('.py')}.MultiTokenConfig"
    }
    assert (tmp_path / PACKAGE_IMPORT).exists()
    assert not AutoConfig.from_pretrained(tmp_path).auto_map


def test_a_subclass_of_someone_elses_is_theirs_to_register(tmp_path):
    class Theirs(MdlmConfig):
        model_type = "theirs"

    Theirs().save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())
    Theirs.register_for_auto_class()
    MdlmConfig.register_for_auto_class()
    assert (Theirs._auto_class, MdlmConfig._auto_class) == ("AutoConfig", None)
