"""The Hugging Face client, the models of Transformers and its Trainer work against `HubServer` as against the Hub."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file

from tests.hub_server import LFS_THRESHOLD, HubServer, run_against

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256))
CARD = "---\nlicense: apache-2.0\ntags:\n- tiny\n---\n\n# Tiny, with an umlaut: ü\n"


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


def test_a_pushed_model_comes_back_with_equal_tensors(hub: HubServer, tmp_path: Path) -> None:
    code = """
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
pushed = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=128, n_positions=16))
pushed.push_to_hub("me/tiny")
pulled, weights = AutoModelForCausalLM.from_pretrained("me/tiny").state_dict(), pushed.state_dict()
print(pulled.keys() == weights.keys(), all(torch.equal(pulled[name], weights[name]) for name in weights))
"""
    assert run_against(hub, tmp_path, "-c", code).split() == ["True", "True"]
    assert {"config.json", "generation_config.json", "model.safetensors"} <= hub.files("me/tiny").keys()
    assert any(m == "GET" and path.endswith("/model.safetensors") for m, path in hub.requests), "not downloaded"


def test_an_uploaded_folder_comes_back_byte_for_byte(hub: HubServer, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "figures").mkdir(parents=True)
    (folder / "README.md").write_text(CARD, encoding="utf-8")
    (folder / "figures/a b+c.png").write_bytes(PNG)
    save_file({"weight": torch.randn(LFS_THRESHOLD // 4 + 1)}, folder / "model.safetensors")
    code = f"""
import json, huggingface_hub as hf
print(hf.create_repo("me/folder", exist_ok=True).repo_id, hf.create_repo("me/folder", exist_ok=True).repo_id)
first = hf.upload_folder(repo_id="me/folder", folder_path={str(folder)!r})
again = hf.upload_folder(repo_id="me/folder", folder_path={str(folder)!r})
emptied = hf.delete_file("README.md", "me/folder")
print(json.dumps([first.oid, again.oid, emptied.oid]))
print(json.dumps(sorted(hf.list_repo_files("me/folder", revision=first.oid))))
print(hf.model_info("me/folder").sha)
print(hf.whoami()["name"])
print(hf.snapshot_download("me/folder", revision=first.oid))
"""
    repo_ids, commits, files, sha, user, snapshot = run_against(hub, tmp_path / "home", "-c", code).splitlines()

    local = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}
    assert local == {path: (Path(snapshot) / path).read_bytes() for path in json.loads(files)}
    assert hub.files("me/folder") == {path: data for path, data in local.items() if path != "README.md"}
    first, again, emptied = json.loads(commits)
    assert first == again, "a folder that has not changed makes no commit"
    assert sha == emptied != first
    assert (repo_ids, user) == ("me/folder me/folder", "me")
    assert sum(method == "PUT" for method, _ in hub.requests) == 2, "the big file and the binary one go through LFS"


def test_what_is_missing_or_forbidden_raises_the_clients_own_error(hub: HubServer, tmp_path: Path) -> None:
    code = """
import huggingface_hub as hf
hf.create_repo("me/empty")
def name(call, *arguments, **options):
    try: return str(call(*arguments, **options))
    except Exception as error: return type(error).__name__
print(name(hf.hf_hub_download, "me/nowhere", "config.json"))
print(name(hf.hf_hub_download, "me/empty", "config.json"))
print(name(hf.model_info, "me/empty", revision="v1"))
print(name(hf.list_repo_files, "nowhere"))
print(name(hf.file_exists, "me/empty", "config.json"))
print(name(hf.repo_exists, "me/empty"))
print(name(hf.create_repo, "me/empty"))
print(name(hf.create_repo, "me/mine", token="hf_wrong"))
print(name(hf.list_datasets().__next__))
print(name(hf.upload_file, repo_id="me/empty", path_in_repo="README.md", path_or_fileobj=b"---\\na: [\\n---\\n"))
print(name(hf.list_repo_tree("me/empty", "nowhere").__next__))
print(name(hf.ModelCard("---\\nlicense: mit\\n---\\n").validate))
"""
    assert run_against(hub, tmp_path, "-c", code).split() == [
        "RepositoryNotFoundError",
        "RemoteEntryNotFoundError",
        "RevisionNotFoundError",
        "RepositoryNotFoundError",
        "False",
        "True",
        "HfHubHTTPError",
        "HfHubHTTPError",
        "HfHubHTTPError",
        "ValueError",
        "RemoteEntryNotFoundError",
        "None",
    ]


def test_a_script_with_push_to_hub_leaves_a_model_and_its_card_on_the_hub(hub: HubServer, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("""
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=128, n_positions=16))
(training,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
data = [{"input_ids": list(range(8)), "labels": list(range(8))}] * 4
trainer = Trainer(model=model, args=training, train_dataset=data)
trainer.train()
trainer.push_to_hub(tags="tiny")
""")
    options = ["--push_to_hub", "--hub_model_id", "me/trained", "--max_steps", "1", "--save_steps", "1", "--use_cpu"]
    run_against(
        hub, tmp_path / "home", str(script), "--output_dir", str(tmp_path / "run"), "--report_to", "none", *options
    )

    files = hub.files("me/trained")
    assert {"config.json", "model.safetensors", "training_args.bin", "README.md"} <= files.keys()
    assert files["model.safetensors"] == (tmp_path / "run/model.safetensors").read_bytes()
    assert "tiny" in yaml.safe_load(files["README.md"].decode().split("---")[1])["tags"]
