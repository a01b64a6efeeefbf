"""The notebooks keep outputs that anyone may read, and `make notebooks` tells where new ones say something else."""

import re
import runpy

import nbformat
import pytest

from tests.programs import ROOT

TOOL = runpy.run_path(str(ROOT / ".ci" / "notebooks.py"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def notebook_of(*texts, tags=()):
    """Return a notebook with a cell for each text that it prints; its cells are named 0, 1 ..."""
    cells = [
        nbformat.v4.new_code_cell(id=str(number), outputs=[nbformat.v4.new_output("stream", text=text)])
        for number, text in enumerate(texts)
    ]
    for cell in cells:
        cell.metadata["tags"] = list(tags)
    return nbformat.v4.new_notebook(cells=cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_keeps_whole_outputs_and_nothing_of_the_machine_that_made_them(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert [line for cell in code for line in TOOL["failures"](cell)] == []
    assert sum(bool(cell.outputs) for cell in code) > 0.7 * len(code)
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)
    assert notebook.metadata["language_info"] == {"name": "python"}
    assert not [cell.id for cell in notebook.cells if cell.metadata.keys() - {"tags"}]
    assert not re.search(r"/(?:home|root|tmp|work|usr)/", path.read_text(encoding="utf-8"))


def test_outputs_differ_in_words_and_in_numbers_that_are_not_near():
    old = notebook_of("perplexity 30.0, /tmp/one/a in 2.5 seconds\n", "a cat\n")
    assert TOOL["differences"](old, notebook_of("perplexity 30.9, /tmp/other/b in 31 seconds\n", "a cat\n")) == []
    for others in (("perplexity 33.0, /tmp/one/a in 2.5 seconds\n", "a cat\n"), ("perplexity 30.0\n", "a dog\n")):
        assert TOOL["differences"](old, notebook_of(*others))
    told = TOOL["differences"](old, notebook_of(old.cells[0].outputs[0].text, "a dog\n"))
    assert told == ["  1: --- stored", "  1: +++ new", "  1: -a cat", "  1: +a dog"]


def test_a_cell_that_varies_must_say_something():
    old = notebook_of("drawn: 1\n", tags=["varies"])
    assert TOOL["differences"](old, notebook_of("other: 2\n")) == []
    assert TOOL["differences"](old, notebook_of(""))


def test_an_error_and_a_warning_name_their_cell():
    failed = notebook_of("fine\n", "")
    failed.cells[1].outputs = [nbformat.v4.new_output("error", ename="ValueError", evalue="no rows")]
    failed.cells[0].outputs[0].name = "stderr"
    assert TOOL["differences"](failed, failed, compared=False) == ["  0: fine\n", "  1: ValueError: no rows"]
