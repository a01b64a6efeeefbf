"""What README and the pages of results say: their examples run, their figures agree, their links lead somewhere."""

import re
from copy import deepcopy

import pytest
from transformers import AutoModelForCausalLM, LlamaConfig

import hf_targets
from tests.small_tokenizers import BPE
from tests.test_house import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "recipes").glob("*.md")}
BEGIN, *EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.S)
SMOLLM2 = ROOT / "models" / "smollm2-135m"
CHAT = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
_FIGURE = re.compile(r"(\d[\d,]*\.?\d*) ± (\d+\.?\d*)")


def figures(text: str) -> list[tuple[float, float]]:
    """Return the means and standard errors in a text."""
    return [(float(mean.replace(",", "")), float(error)) for mean, error in _FIGURE.findall(text)]


def run_example(hub, number, folder):
    """Run an example of README after its first lines, which load a model, and return what it prints."""
    strict = "import warnings; warnings.filterwarnings('error', category=DeprecationWarning, module='__main__')\n"
    done = hub.run(strict + BEGIN + EXAMPLES[number], folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def like_smollm2(tmp_path_factory):
    """Return a folder in which a tiny model and tokenizer have the place of the one that `make models` fetches."""
    tokenizer = deepcopy(BPE)
    tokenizer.chat_template = CHAT
    tokenizer.add_special_tokens({"additional_special_tokens": ["<reponame>"]})
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {"vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    config = LlamaConfig(**sizes, **ids)
    folder = tmp_path_factory.mktemp("clone")
    for part in (AutoModelForCausalLM.from_config(config), tokenizer):
        part.save_pretrained(folder / "models" / SMOLLM2.name)
    return folder


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_readme_runs_as_it_stands(number, hub, like_smollm2):
    assert run_example(hub, number, like_smollm2)


@pytest.mark.real(SMOLLM2.name)
def test_the_drafts_of_the_readme_save_passes_of_the_trained_model(hub, tmp_path):
    (tmp_path / "models").symlink_to(SMOLLM2.parent)
    passes = re.search(r"(\d+) passes", run_example(hub, 0, tmp_path))
    assert passes and int(passes[1]) < 8  # for 14 tokens


def test_the_plug_in_of_the_page_is_a_head(hub, tmp_path):
    (source,) = re.findall(r"```python\n(.*?)```", PAGES["contributing.md"], re.S)
    (tmp_path / "my_head.py").write_text(source)
    use = tmp_path / "use.py"
    use.write_text(
        "import my_head; from hf_targets import MultiTokenConfig; print(MultiTokenConfig(head='gated').head)"
    )
    done = hub.run(use)
    assert done.stdout.strip() == "gated", done.stderr


def test_each_target_has_an_example():
    classes = ("MultiTokenForCausalLM", "DynamicVocabForCausalLM", "MdlmForMaskedDiffusion", "embedding_geometry")
    assert all(any(name in example for example in EXAMPLES) for name in classes)


def test_figures_of_the_readme_are_those_of_the_pages():
    known = figures("\n".join(PAGES.values()))
    shown = figures(README)
    assert shown
    for mean, error in shown:  # to one digit
        assert any(abs(mean - m) < 0.0501 and abs(error - e) < 0.0501 for m, e in known), (mean, error)


@pytest.mark.parametrize("name", ["README.md", *(f"recipes/{page}" for page in PAGES)])
def test_links_lead_to_files_and_headings_that_exist(name):
    path = ROOT / name
    for target in re.findall(r"\]\((?!https://)([^)]+)\)", path.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        linked = path.parent / file if file else path
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.M)
            assert anchor in [re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in headings]


def test_every_script_and_settings_file_is_in_the_table_of_the_page():
    for folder in ("", "tables/", "benchmarks/"):
        for script in (ROOT / "recipes" / folder).glob("*.py"):
            row = next(
                line for line in PAGES["README.md"].splitlines() if line.startswith(f"| `{folder}{script.name}`")
            )
            settings = {path.stem for path in (ROOT / "recipes" / "settings" / folder / script.stem).glob("*.yaml")}
            assert settings - {"smoke"} == set(re.findall(r"`(\w+)`", row.split("|")[3])), script


def test_the_page_of_tables_names_scripts_with_their_settings():
    cells = [line.split("|")[2] for line in PAGES["tables.md"].splitlines() if line.startswith("| ") and ".py`" in line]
    assert len(cells) > 25
    for script, names in (found for cell in cells for found in re.findall(r"`([\w/]+)\.py`((?:,? `[^`]+`)*)", cell)):
        script = script.removeprefix("recipes/")
        assert (ROOT / "recipes" / f"{script}.py").exists(), script
        for name in re.findall(r"`(\w+)[^`]*`", names):
            assert (ROOT / "recipes" / "settings" / script / f"{name}.yaml").exists(), f"{script} {name}"


@pytest.mark.parametrize("name", ["README.md", *(f"recipes/{page}" for page in PAGES)])
def test_commands_name_scripts_and_settings_that_exist(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    for path in re.findall(r"\brecipes/[\w./-]+\.(?:py|ya?ml|md)", text):
        assert (ROOT / path).exists(), path


def test_each_public_name_is_shown_to_a_reader():
    notebooks = [path.read_text(encoding="utf-8") for path in (ROOT / "notebooks").glob("*.ipynb")]
    examples = [
        "\n".join(re.findall(r"^\s*(?:>>>|\.\.\.) .*$", path.read_text(encoding="utf-8"), re.M))
        for path in (ROOT / "hf_targets").rglob("*.py")
    ]
    words = set(re.findall(r"\w+", "\n".join([README, *PAGES.values(), *notebooks, *examples])))
    assert [name for name in hf_targets.__all__ if name not in words] == []
