"""The Hugging Face client and the models of Transformers work against `HubServer` as against the Hub."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.hub_server import LFS_THRESHOLD, HubServer


def test_an_uploaded_folder_comes_back_byte_for_byte(hub: HubServer, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "figures").mkdir(parents=True)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# With an umlaut: ü\n", encoding="utf-8")
    (folder / "figures/a b+c.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    save_file({"weight": torch.randn(LFS_THRESHOLD // 4 + 1)}, folder / "model.safetensors")
    code = f"""
import json, huggingface_hub as hf
hf.create_repo("me/folder", exist_ok=True)
first = hf.upload_folder(repo_id="me/folder", folder_path={str(folder)!r})
again = hf.upload_folder(repo_id="me/folder", folder_path={str(folder)!r})
emptied = hf.delete_file("README.md", "me/folder")
print(json.dumps([first.oid, again.oid, emptied.oid]))
print(json.dumps(sorted(hf.list_repo_files("me/folder", revision=first.oid))))
print(hf.model_info("me/folder").sha)
print(hf.snapshot_download("me/folder", revision=first.oid))
"""
    commits, files, sha, snapshot = hub.run(code).stdout.splitlines()
    local = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}
    assert local == {path: (Path(snapshot) / path).read_bytes() for path in json.loads(files)}
    assert hub.files("me/folder") == {path: data for path, data in local.items() if path != "README.md"}
    first, again, emptied = json.loads(commits)
    assert first == again, "a folder that has not changed makes no commit"
    assert sha == emptied != first


def test_what_is_missing_or_forbidden_raises_the_clients_own_error(hub: HubServer) -> None:
    code = """
import huggingface_hub as hf
hf.create_repo("me/empty")
def name(call, *arguments, **options):
    try: return str(call(*arguments, **options))
    except Exception as error: return type(error).__name__
print(name(hf.hf_hub_download, "me/nowhere", "config.json"))
print(name(hf.hf_hub_download, "me/empty", "config.json"))
print(name(hf.model_info, "me/empty", revision="v1"))
print(name(hf.file_exists, "me/empty", "config.json"))
print(name(hf.create_repo, "me/empty"))
print(name(hf.create_repo, "me/mine", token="hf_wrong"))
"""
    assert hub.run(code).stdout.split() == [
        "RepositoryNotFoundError",
        "RemoteEntryNotFoundError",
        "RevisionNotFoundError",
        "False",
        "HfHubHTTPError",
        "HfHubHTTPError",
    ]
