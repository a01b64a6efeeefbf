"""The table of targets: a package adds rows, a failed run keeps its place, and the page is written without training."""

import json
from pathlib import Path

import pytest

from tests.recipes.running import run_recipe, small_text

SOURCE = """
from dataclasses import dataclass
from pathlib import Path
from transformers import AutoModelForCausalLM, TrainingArguments

@dataclass
class Setup:
    base: str = ""
    works: bool = True

SETTINGS = (Setup, TrainingArguments)

def main(setup, args):
    if not setup.works:
        raise ValueError("this row does not work")
    AutoModelForCausalLM.from_pretrained(setup.base).save_pretrained(args.output_dir)
    return {"perplexity": 7.0}

def system(folder, given):
    return AutoModelForCausalLM.from_pretrained(folder), {}
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a package that has a row, as far as Python can tell."""
    (tmp_path / "my_row.py").write_text(SOURCE)
    told = tmp_path / "my_row-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: my-row\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text("[hf_targets.leaderboard]\nmine = my_row\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_row_of_each_kind_is_trained_and_measured(tmp_path):
    printed = run_recipe("tables/leaderboard", "--dataset", small_text(), "--output_dir", tmp_path)
    figures = {path.stem: json.loads(path.read_text())["figures"] for path in tmp_path.glob("*.json")}
    assert len(figures) == 7 and "failed" not in printed
    assert all(one["generated_ppl"] > 1 and one["cpu_seconds"] > 0 for one in figures.values())
    bound = figures["masked diffusion-seed0"]
    assert f"| masked diffusion | at most {bound['perplexity_bound']:.1f} |" in printed and "perplexity" not in bound


def test_a_package_adds_rows_and_a_failed_one_keeps_its_place(package, finetuned, tmp_path):
    page, out = tmp_path / "page.md", tmp_path / "out"
    page.write_text(
        "# Above\n\n<!-- begin: recipes/tables/leaderboard.py writes from here -->\n<!-- end -->\n\nBelow\n"
    )
    base = str(finetuned[0] / "plain-seed0")
    rows = {"theirs": {"kind": "mine", "base": base}, "broken": {"kind": "mine", "works": False}}
    given = ["--rows", json.dumps(rows), "--dataset", small_text(), "--judge", base]
    given += ["--output_dir", out, "--page", page]
    printed = run_recipe("tables/leaderboard", *given)
    assert "| theirs | 7.0 |" in printed and "| broken | failed |" in printed
    assert "- broken, seed 0: ValueError: this row does not work" in printed
    above, table, below = page.read_text().partition(printed[printed.index("| row") : printed.index("Runs:")].strip())
    assert above.startswith("# Above") and table and below.endswith("<!-- end -->\n\nBelow\n")
    file = Path(out, "theirs-seed0.json")
    record = json.loads(file.read_text())
    record["figures"]["perplexity"] = 6.0  # what is written is read, and not trained again
    file.write_text(json.dumps(record))
    assert "| theirs | 6.0 |" in run_recipe("tables/leaderboard", *given)
    assert page.read_text().count("| theirs |") == 1
