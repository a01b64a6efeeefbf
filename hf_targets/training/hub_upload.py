"""Uploads of a model's folder to the Hub."""

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import HfApi
from transformers import TrainingArguments


def create_repository(name: str, args: TrainingArguments) -> None:
    """Make sure that there is a repository to upload to, before hours of training.

    Args:
        name: Of the repository.
        args: Their `hub_token` and `hub_private_repo` are used.
    """
    HfApi(token=args.hub_token).create_repo(name, private=args.hub_private_repo, exist_ok=True)


def upload_folder(folder: Path, name: str, args: TrainingArguments, *, leave_out: Sequence[str]) -> str:
    """Upload a model's folder to its repository on the Hub; return its address there.

    Args:
        leave_out: Subfolders that stay here.
    """
    api = HfApi(token=args.hub_token)
    repository = api.create_repo(name, exist_ok=True).repo_id
    ignored = [f"{subfolder}/*" for subfolder in leave_out]
    return str(api.upload_folder(repo_id=repository, folder_path=folder, ignore_patterns=ignored))
