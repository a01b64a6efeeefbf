"""The page of departures has what the code says."""

import runpy
import subprocess
from pathlib import Path

TOOL = runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "departures.py"))
PAGE, ROOT, departures, page = (TOOL[name] for name in ("PAGE", "ROOT", "departures", "page"))


def test_the_page_has_the_departures_of_the_code_and_no_other_page_has_any():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python .ci/departures.py"
    others = [ROOT / "README.md", *(path for path in PAGE.parent.glob("*.md") if path != PAGE)]
    assert not [path.name for path in others if "- Departs:" in path.read_text(encoding="utf-8")]


def test_every_mark_that_grep_finds_is_on_the_page():
    found = subprocess.run(
        ["grep", "-rc", "Departs:", "hf_targets", "recipes", "--include=*.py", "--include=*.yaml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    counts = dict(line.rsplit(":", 1) for line in found.stdout.splitlines())
    assert sum(map(int, counts.values())) == len(list(departures())) > 50


def test_a_mark_ends_with_its_comment_its_part_of_a_docstring_or_the_next_mark(tmp_path):
    (tmp_path / "hf_targets").mkdir()
    (tmp_path / "hf_targets" / "a.py").write_text(
        '"""Module. Departs: of the module."""\n\n\n'
        'class One:\n    """A class.\n\n    Source: X. Departs: first\n        line | second.\n    Raises: Y.\n'
        '    """\n\n'
        "    def two(self):\n        # Departs: a\n        # comment\n        pass\n"
    )
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "b.yaml").write_text(
        "# Departs: one\n# Departs: two\n# Not given in the paper: three\na: 1\n"
    )
    assert list(departures(tmp_path)) == [
        ("hf_targets/a.py", "", "Of the module."),
        ("hf_targets/a.py", "One", "First line | second."),
        ("hf_targets/a.py", "two", "A comment."),
        ("recipes/b.yaml", "", "One."),
        ("recipes/b.yaml", "", "Two."),
    ]
    assert "| `a.py`, `One` | First line \\| second. |" in page(tmp_path)
