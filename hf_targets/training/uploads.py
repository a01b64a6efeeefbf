"""What a Trainer uploads of its folder: the files that a training writes, and nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from transformers import trainer

from hf_targets.backbones.configuration import PACKAGE_IMPORT

_MODEL = ("config.json", "generation_config.json", PACKAGE_IMPORT, "adapter_config.json", "adapter_model.safetensors")
_MODEL += ("model.safetensors", "model.safetensors.index.json", "model-?????-of-?????.safetensors")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_TOKENIZER += ("chat_template.jinja", "additional_chat_templates/*.jinja")
_TOKENIZER += ("processor_config.json", "preprocessor_config.json")
_RESULTS = ("README.md", "results.json", ".eval_results/*.yaml")


def own_files(processing_class: Any) -> list[str]:
    """Return patterns of the files of a model, its tokenizer, card and results."""
    vocabulary = getattr(processing_class, "vocab_files_names", {}).values()
    return [*_MODEL, *_TOKENIZER, *vocabulary, *_RESULTS]


@contextmanager
def uploads_of_own_files(folder: str, processing_class: Any) -> Iterator[None]:
    """Let Transformers' Trainer upload of its folder only the model with its code, tokenizer, card and results.

    It would take all that lies there, and `training_args.bin`, which has paths and the token of the Hub. It has no
    argument for this, so that its way to the Hub is replaced for the time of a `with`. A checkpoint that is asked for
    (`hub_strategy="checkpoint"`) goes up whole.
    """
    own, module = own_files(processing_class), cast(Any, trainer)
    api_of = module.hf_api
    api = api_of()

    def upload_folder(*, folder_path: str, **kwargs: Any) -> Any:
        config = Path(folder, "config.json")
        has_code = config.is_file() and '"auto_map"' in config.read_text(encoding="utf-8")
        code = [file.name for file in Path(folder).glob("*.py")] if has_code else []
        only = {"allow_patterns": [*own, *code]} if Path(folder_path) == Path(folder) else {}
        return api.upload_folder(folder_path=folder_path, **kwargs, **only)

    module.hf_api = lambda: SimpleNamespace(create_repo=api.create_repo, upload_folder=upload_folder)
    try:
        yield
    finally:
        module.hf_api = api_of
