"""House rules: layers, file lengths, what may be named, what must be documented."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("maths", "data", "retrieval", "decoding", "models", "training", "evaluation", "figures")
TARGETS = ("multitoken", "phrases", "curves", "cosine")
PACKAGE = sorted((ROOT / "hf_targets").rglob("*.py"))
ALL = [*PACKAGE, *sorted((ROOT / "recipes").rglob("*.py")), *sorted((ROOT / "tests").rglob("*.py"))]
named = {"ids": lambda path: str(path.relative_to(ROOT))}


def imports_of(path: Path) -> list[str]:
    modules = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            modules.append(node.module)
    return modules


def layer_of(module: str) -> int | None:
    parts = module.split(".")
    return LAYERS.index(parts[1]) if len(parts) > 1 and parts[0] == "hf_targets" and parts[1] in LAYERS else None


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("path", PACKAGE, **named)
def test_imports_point_down(path):
    own = layer_of(module_of(path))
    for module in imports_of(path):
        other = layer_of(module)
        if own is not None and other is not None:
            assert other <= own, f"{module} is above {LAYERS[own]}"
        if own is not None and module == "hf_targets":
            pytest.fail("import from the module itself, not from the package's door")


@pytest.mark.parametrize("path", PACKAGE, **named)
def test_targets_do_not_import_each_other(path):
    own = {target for target in TARGETS if target in path.relative_to(ROOT).with_suffix("").parts}
    for module in imports_of(path):
        others = {target for target in TARGETS if target in module.split(".") and module.startswith("hf_targets")}
        if own:
            assert others <= own


@pytest.mark.parametrize("path", ALL, **named)
def test_a_file_has_at_most_400_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


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


def test_recipes_have_at_most_150_lines_and_settings():
    for path in (ROOT / "recipes").glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 150, path
        settings = ROOT / "recipes" / "settings" / path.stem
        assert {"smoke.yaml", "paper.yaml"} <= {file.name for file in settings.iterdir()}, path


def test_readme_is_short_and_names_only_files_that_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    for name in re.findall(r"(?:recipes|notebooks|tests)/[\w./-]+\.(?:py|ya?ml|ipynb|md)", text):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("path", PACKAGE, **named)
def test_public_functions_and_classes_are_documented(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for node in [*tree.body, *(member for one in classes for member in one.body)]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{path}:{node.lineno} {node.name}"


def test_every_public_name_can_be_imported():
    import hf_targets

    for name in hf_targets.__all__:
        assert getattr(hf_targets, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        hf_targets.Nothing  # noqa: B018


def test_importing_the_package_loads_nothing_heavy_and_says_nothing():
    heavy = ["matplotlib", "peft", "datasets", "sklearn", "faiss", "stanza", "mauve"]
    code = f"import sys, hf_targets; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"
    assert done.stderr == ""
