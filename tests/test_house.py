"""House rules: layers and targets, file lengths, what may be named, what must be documented."""

import ast
import re
import runpy
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Literal, get_origin

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("maths", "data", "retrieval", "backbones", "training", "evaluation", "figures")
"""Shared folders; each imports itself and those before it."""
USES = {
    "baselines": {"neural_cache", "phrases"},
    "masked_diffusion": {"curves"},
    "multitoken": {"phrases"},
    "gaussian_diffusion": {"curves", "multitoken"},
    "semi_autoregressive": {"curves"},
}
"""What a target may import of other targets. All other folders are targets that import none."""
DOORS, BELOW = ("auto", "harness"), ("extras", "registry")
"""Modules at the root: those that know the targets, and those that every folder may import."""
PACKAGE = sorted((ROOT / "hf_targets").rglob("*.py"))
ALL = [*PACKAGE, *sorted((ROOT / "recipes").rglob("*.py")), *sorted((ROOT / "tests").rglob("*.py"))]


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    """Return the modules of ours that a file imports, anywhere in it, for type checkers too."""
    modules = set()
    for node in ast.walk(ast.parse(read(path))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            modules.add(node.module)
    return {module for module in modules if module.split(".")[0] == "hf_targets"}


def folder_of(module: str) -> str | None:
    """Return the folder of the package that a module lies in; None for those beside the folders."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (ROOT / "hf_targets" / parts[1]).is_dir() else None


def may_import(folder: str, other: str) -> bool:
    if folder in LAYERS:
        return other in LAYERS[: LAYERS.index(folder) + 1]
    return other in {folder, *LAYERS, *USES.get(folder, set())}


def test_the_root_holds_the_doors_and_what_every_layer_may_use():
    assert {path.stem for path in PACKAGE if path.parent.name == "hf_targets"} == {"__init__", *DOORS, *BELOW}
    assert not {folder_of(module) for path in PACKAGE if path.stem in BELOW for module in imports_of(path)} - {None}


def test_shared_layers_import_downwards_and_no_target_and_targets_what_is_declared():
    inside = {path: folder for path in PACKAGE if (folder := folder_of(module_of(path))) is not None}
    assert set(LAYERS) <= set(inside.values())
    assert [
        f"{path.relative_to(ROOT)} imports {module}"
        for path, folder in inside.items()
        for module in imports_of(path)
        if (other := folder_of(module)) is not None and not may_import(folder, other)
    ] == []
    doors = [path for path in inside if {"hf_targets", "hf_targets.auto"} & imports_of(path)]
    assert doors == [], "import from the module itself, not from the package's door"


def test_what_a_target_may_use_is_used():
    used = {(folder_of(module_of(path)), folder_of(module)) for path in PACKAGE for module in imports_of(path)}
    assert {(folder, other) for folder, others in USES.items() for other in others} <= used


def test_no_modules_import_each_other_in_a_circle():
    try:
        TopologicalSorter({module_of(path): imports_of(path) for path in PACKAGE}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_picture_of_the_house_is_that_of_the_code():
    drawing = runpy.run_path(str(ROOT / ".ci" / "draw_house.py"))
    assert read(drawing["PICTURE"]) == drawing["house"](), "draw it again: python .ci/draw_house.py"


def test_a_file_has_at_most_400_lines():
    assert [path for path in ALL if len(read(path).splitlines()) > 400] == []


def test_names_say_what_a_file_holds():
    assert not [path for path in ALL if path.stem in {"utils", "common", "base", "misc", "helpers"}]


def test_top_level_holds_what_it_should():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    allowed = {
        "pyproject.toml", "README.md", "Makefile", "LICENSE", "constraints.txt", ".gitignore", "hf_targets", "recipes",
        "notebooks", "tests", ".ci",
    }  # fmt: skip
    assert {line.split("/")[0] for line in tracked.stdout.splitlines()} <= allowed


def test_the_oldest_releases_that_are_tried_are_the_oldest_that_may_be_installed():
    told = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]["dependencies"]
    floors = dict(dependency.split(">=") for dependency in told)
    for name, version in re.findall(r"^(\w+)==(.*)", read(ROOT / ".ci" / "oldest.txt"), re.MULTILINE):
        assert version == floors.get(name, version) or version == f"{floors[name]}.0", name


def test_each_script_has_at_most_150_lines_and_settings_to_try_it_with():
    for folder in ("", "tables", "benchmarks"):
        for path in (ROOT / "recipes" / folder).glob("*.py"):
            assert len(read(path).splitlines()) <= (200 if folder == "benchmarks" else 150), path
            names = {file.stem for file in (ROOT / "recipes" / "settings" / folder / path.stem).glob("*.yaml")}
            assert "smoke" in names and ("measured" in names or folder != "benchmarks"), path


def test_the_package_imports_nothing_of_the_laboratory():
    imports = (node for path in PACKAGE for node in ast.walk(ast.parse(read(path))) if isinstance(node, ast.ImportFrom))
    assert not [
        node.module for node in imports if node.module and node.module.split(".")[0] in ("demo", "lab", "recipes")
    ]


def test_readme_is_short_and_names_only_files_that_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    for name in re.findall(r"(?:recipes|notebooks|tests)/[\w./-]+\.(?:py|ya?ml|ipynb|md)", text):
        assert (ROOT / name).exists(), name


def test_public_functions_and_classes_are_documented():
    lacking = []
    for path in PACKAGE:
        body = ast.parse(read(path)).body
        members = [member for node in body if isinstance(node, ast.ClassDef) for member in node.body]
        defined = [node for node in body + members if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        public = [node for node in defined if not node.name.startswith("_")]
        lacking += [f"{path}:{node.lineno} {node.name}" for node in public if not ast.get_docstring(node)]
    assert lacking == []


def test_every_public_name_can_be_imported():
    import hf_targets

    for name in hf_targets.__all__:
        value = getattr(hf_targets, name)
        assert name.isupper() or get_origin(value) is Literal or value.__name__ == name
        assert value is not None
    with pytest.raises(AttributeError, match="hf_targets attribute Nothing"):
        hf_targets.Nothing  # noqa: B018


def test_importing_the_package_loads_no_optional_dependency_and_says_nothing():
    heavy = ["datasets", "faiss", "lancedb", "matplotlib", "mauve", "peft", "sklearn", "stanza", "transformers.trainer"]
    heavy.append("hf_targets.maths.bsplines")  # and with it scipy, which only a curve of some length needs
    code = f"import sys, hf_targets; hf_targets.SentenceCurve; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("[]\n", "")
