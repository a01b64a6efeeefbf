"""The folder of a Space of the Hub: the demo with all that it runs, and what the Hub must know of it."""

import shutil
import tomllib
from importlib.metadata import version
from pathlib import Path

from lab.settings import RECIPES

_README = """---
title: {title}
emoji: 🎯
colorFrom: blue
colorTo: green
sdk: gradio
sdk_version: {gradio}
python_version: "3.11"
app_file: app.py
license: apache-2.0
---

{text}
"""
_APP = '''"""Starts the demo."""

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent
recipes = HERE / "recipes"
sys.path[:0] = [str(HERE), str(recipes)]
sys.argv = [str(recipes / "demo" / "app.py"), str(recipes / "settings" / "demo" / "app" / "space.yaml")]
runpy.run_path(sys.argv[0], run_name="__main__")
'''
_CODE = ("hf_targets", "recipes/lab", "recipes/demo", "recipes/settings/demo", "recipes/train_mdlm_curve.py")
_EXTRAS = ("phrases",)
_LEFT_OUT = ("faiss", "nltk", "stanza")


def write_space(folder: Path, *, title: str, text: str) -> None:
    """Write a Space into a folder, over an earlier one: a program that starts the demo with the settings `space`."""
    root = RECIPES.parent
    for name in _CODE:
        if Path(root, name).is_dir():
            skipped = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(root / name, folder / name, dirs_exist_ok=True, ignore=skipped)
        else:
            shutil.copyfile(root / name, folder / name)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = (one for name in _EXTRAS for one in project["optional-dependencies"][name])
    needed = [*project["dependencies"], *(one for one in extras if not one.startswith(_LEFT_OUT))]
    own = folder / "hf_targets.dist-info" / "METADATA"  # by which the package knows its version, not being installed
    own.parent.mkdir(exist_ok=True)
    about = _README.format(title=title, gradio=version("gradio"), text=text)
    files = {folder / "README.md": about, folder / "requirements.txt": "\n".join(needed), folder / "app.py": _APP}
    files[own] = f"Metadata-Version: 2.1\nName: hf-targets\nVersion: {version('hf-targets')}"
    for file, content in files.items():
        file.write_text(content.rstrip() + "\n", encoding="utf-8")


def push_space(folder: Path, repository: str) -> str:
    """Upload a Space to the Hub, which makes its repository if there is none, and return its address."""
    from huggingface_hub import HfApi

    api = HfApi()
    address = api.create_repo(repository, repo_type="space", space_sdk="gradio", exist_ok=True)
    api.upload_folder(folder_path=folder, repo_id=repository, repo_type="space")
    return str(address)
