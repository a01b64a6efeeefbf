"""A small Hugging Face Hub on the loopback interface, which runs client code against itself.

It keeps model repositories in memory and answers the part of the Hub's API behind `push_to_hub`, `upload_folder`,
`from_pretrained`, `list_repo_files`, `model_info` and `file_exists`; any other path is a 404. There is one branch,
`main`, and every commit stays readable by its id. Large and binary files travel as plain Git LFS, not by Xet.

    with HubServer(tmp_path / "home") as hub:
        hub.run("import huggingface_hub; huggingface_hub.create_repo('me/tiny')")
        assert not hub.files("me/tiny")
"""

import base64
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import rmtree
from subprocess import CompletedProcess
from typing import Any, ClassVar, Self
from urllib.parse import unquote

from tests.programs import LIBRARIES, ROOT, ForkServer

USER, TOKEN = "me", "hf_test"
LFS_THRESHOLD = 10 * 2**20


class HubError(Exception):
    """An answer other than success; the client picks its exception by `X-Error-Code`."""

    def __init__(self, status: int, message: str, code: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        errors = {"error": message, "errors": [{"message": message}]}
        self.answer = Answer(errors, status, {"X-Error-Message": message, "X-Error-Code": code, **(headers or {})})


@dataclass
class Answer:
    """What the server sends: bytes as they are, anything else as JSON."""

    content: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


def git_blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def is_lfs(size: int, sample: bytes) -> bool:
    """Return whether a file of `size` bytes that begins with `sample` is stored as LFS: one that is big or binary."""
    return size > LFS_THRESHOLD or b"\0" in sample


def content_id(data: bytes) -> str:
    """Return what the Hub knows a file's content by: its SHA-256 under LFS, and its git blob id otherwise."""
    return hashlib.sha256(data).hexdigest() if is_lfs(len(data), data[:512]) else git_blob_id(data)


class HubServer(ThreadingHTTPServer):
    """The Hub's state, served at `url` while it is entered as a context manager; `home` is its clients' `HF_HOME`."""

    def __init__(self, home: Path) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.home = home
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.commits: dict[str, dict[str, dict[str, bytes]]] = {}  # repo id -> commit id -> path -> content
        self.lfs: dict[str, bytes] = {}
        self.lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.clients.close()
        self.shutdown()
        self.server_close()

    @cached_property
    def clients(self) -> ForkServer:
        """A process that has imported the client and not `hf_targets`; it reads where the Hub is at that import."""
        taken = [name for name in os.environ if re.match("HF_HUB_|HUGGINGFACE_|.*_PROXY$", name.upper())]
        given = {"HF_ENDPOINT": self.url, "HF_TOKEN": TOKEN, "HF_HOME": str(self.home), "HF_HUB_OFFLINE": "0"}
        given |= {"HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1"}
        given["HF_HUB_DISABLE_XET"] = "1"  # with hf_xet the client uploads by it, whatever the server offers
        return ForkServer(LIBRARIES, {**dict.fromkeys(taken), **given})

    def run(self, program: str | Path, *arguments: object, folder: Path = ROOT) -> CompletedProcess[str]:
        """Run a program as a client on a machine of its own: the cache in `home` is empty."""
        rmtree(self.home, ignore_errors=True)
        self.home.mkdir()
        return self.clients.run(program, *arguments, folder=folder)[0]

    def files(self, repo_id: str) -> dict[str, bytes]:
        """Return the files of a repository as of its last commit: path to content."""
        return dict(self.at(repo_id, "main")[1])

    def at(self, repo_id: str, revision: str) -> tuple[str, dict[str, bytes]]:
        """Return the commit id that `revision` stands for, and the files there."""
        if repo_id not in self.commits:
            raise HubError(404, f"Repository not found: {repo_id}", "RepoNotFound")
        commits = self.commits[repo_id]
        commit_id = next(reversed(commits)) if revision == "main" else revision
        if commit_id not in commits:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit_id, commits[commit_id]


class HubHandler(BaseHTTPRequestHandler):
    """One request: `body` is what it carries, `server` is what it reads or changes."""

    server: HubServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes; the second would wait for an acknowledgement

    def serve(self) -> None:
        path = self.path.partition("?")[0]
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.server.lock:
            try:
                answer = self.answer("GET" if self.command == "HEAD" else self.command, path)
            except HubError as error:
                answer = error.answer
        body = answer.content if isinstance(answer.content, bytes) else json.dumps(answer.content).encode()
        self.send_response(answer.status)
        for name, value in {**answer.headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = serve

    def log_message(self, *args: Any) -> None:
        """Stay silent."""

    def answer(self, method: str, path: str) -> Answer:
        for verb, pattern, handle in self.routes:
            if verb == method and (match := re.fullmatch(pattern, path)):
                return handle(self, *map(unquote, match.groups(default="")))
        raise HubError(404, f"no such path: {method} {path}")

    def check_token(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise HubError(401, "Invalid credentials in Authorization header")

    def whoami(self) -> Answer:
        self.check_token()
        return Answer({"type": "user", "name": USER, "orgs": []})

    def validate_yaml(self) -> Answer:
        return Answer({"errors": [], "warnings": []})

    def create(self) -> Answer:
        self.check_token()
        asked = json.loads(self.body)
        repo_id = f"{asked['organization'] or USER}/{asked['name']}"
        status = 409 if repo_id in self.server.commits else 200
        self.server.commits.setdefault(repo_id, {git_blob_id(repo_id.encode()): {}})
        return Answer({"url": f"{self.server.url}/{repo_id}"}, status)

    def model_info(self, repo_id: str, revision: str) -> Answer:
        commit_id, files = self.server.at(repo_id, revision or "main")
        return Answer({"id": repo_id, "sha": commit_id, "siblings": [{"rfilename": path} for path in files]})

    def tree(self, repo_id: str, revision: str, folder: str) -> Answer:
        """List the files of a folder and of the folders below it, whether or not that was asked for."""
        commit_id, files = self.server.at(repo_id, revision)
        below = {path: data for path, data in files.items() if path.startswith(f"{folder}/" if folder else "")}
        if folder and not below:
            raise HubError(404, f"no folder {folder}", "EntryNotFound", {"X-Repo-Commit": commit_id})
        entries = [(path, len(data), git_blob_id(data)) for path, data in below.items()]
        return Answer([{"type": "file", "path": path, "size": size, "oid": oid} for path, size, oid in entries])

    def resolve(self, repo_id: str, revision: str, path: str) -> Answer:
        commit_id, files = self.server.at(repo_id, revision)
        if path not in files:
            raise HubError(404, f"no file {path}", "EntryNotFound", {"X-Repo-Commit": commit_id})
        return Answer(files[path], headers={"ETag": f'"{content_id(files[path])}"', "X-Repo-Commit": commit_id})

    def preupload(self, repo_id: str, revision: str) -> Answer:
        _, files = self.server.at(repo_id, revision)
        answers = []
        for file in json.loads(self.body)["files"]:
            mode = "lfs" if is_lfs(file["size"], base64.b64decode(file["sample"])) else "regular"
            answers.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False})
            if file["path"] in files:  # the client leaves out of the commit what has not changed
                answers[-1]["oid"] = content_id(files[file["path"]])
        return Answer({"files": answers})

    def lfs_batch(self, repo_id: str) -> Answer:
        objects = json.loads(self.body)["objects"]
        for item in objects:
            if item["oid"] not in self.server.lfs:
                item["actions"] = {"upload": {"href": f"{self.server.url}/lfs/{item['oid']}"}}
        return Answer({"objects": objects})

    def lfs_upload(self, oid: str) -> Answer:
        self.server.lfs[oid] = self.body
        return Answer({})

    def commit(self, repo_id: str) -> Answer:
        self.check_token()
        parent, files = self.server.at(repo_id, "main")[0], self.server.files(repo_id)
        for operation in map(json.loads, self.body.splitlines()[1:]):  # the first line is the commit's message
            path = operation["value"]["path"]
            match operation["key"]:
                case "file":
                    files[path] = base64.b64decode(operation["value"]["content"])
                case "lfsFile" if operation["value"]["oid"] in self.server.lfs:
                    files[path] = self.server.lfs[operation["value"]["oid"]]
                case "deletedFile" if path in files:
                    del files[path]
                case key:
                    raise HubError(400, f"cannot commit {key} {path}")
        commit_id = git_blob_id(parent.encode() + self.body)
        self.server.commits[repo_id][commit_id] = files
        return Answer({"commitUrl": f"{self.server.url}/{repo_id}/commit/{commit_id}", "commitOid": commit_id})

    REPO, REVISION = "([^/]+(?:/[^/]+)?)", "([^/]+)"
    routes: ClassVar[list[tuple[str, str, Callable[..., Answer]]]] = [  # groups in the path are the arguments
        ("GET", "/api/whoami-v2", whoami),
        ("POST", "/api/validate-yaml", validate_yaml),
        ("POST", "/api/repos/create", create),
        ("GET", f"/api/models/{REPO}(?:/revision/{REVISION})?", model_info),
        ("GET", f"/api/models/{REPO}/tree/{REVISION}(?:/(.+))?", tree),
        ("GET", f"/{REPO}/resolve/{REVISION}/(.+)", resolve),
        ("POST", f"/api/models/{REPO}/preupload/{REVISION}", preupload),
        ("POST", f"/{REPO}[.]git/info/lfs/objects/batch", lfs_batch),
        ("PUT", "/lfs/([0-9a-f]{64})", lfs_upload),
        ("POST", f"/api/models/{REPO}/commit/main", commit),
    ]
