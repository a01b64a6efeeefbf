"""The demo in a browser: what its page answers, what it says of bad input, and the folder of a Space."""

import os
import re
import subprocess
import sys

import pytest
import yaml

import hf_targets
from tests.programs import ROOT
from tests.recipes.answering import QUESTION, TEXT, write_models
from tests.recipes.running import run_recipe

gradio = pytest.importorskip("gradio")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a tiny model and with settings that take it."""
    folder = tmp_path_factory.mktemp("app")
    write_models(folder)
    told = yaml.safe_load((ROOT / "recipes" / "settings" / "app" / "smoke.yaml").read_text())
    told |= {"model": str(folder / "writer"), "output_dir": str(folder / "out"), "space": None, "questions": [QUESTION]}
    (folder / "app.yaml").write_text(yaml.safe_dump(told))
    return folder


@pytest.fixture(scope="module")
def client(folder):
    """Return a client of the page, which runs in this process."""
    from app import Setup, load_page
    from gradio_client import Client

    from lab.settings import parse_settings

    page = load_page(*parse_settings(Setup, arguments=[str(folder / "app.yaml")]))
    _, address, _ = page.launch(prevent_thread_lock=True, quiet=True, ssr_mode=False)
    yield Client(address, verbose=False)
    page.close()


def test_each_tab_answers_while_it_works(client):
    answers = client.submit(QUESTION, TEXT, None, api_name="/answer")
    pages = [*answers]
    assert re.search("<mark><a href=.*cat", pages[-1]) and len(pages) > 2
    drafted, told = client.predict(QUESTION, TEXT, None, api_name="/draft")
    assert "passes" in told and any("drafted" in one["class_or_confidence"] for one in drafted)
    states = [*client.submit("The _ ", 4, 1, api_name="/fill")]
    assert "<svg" in states[-1][1] and re.fullmatch(r"State (\d+) of \1", states[-1][2])


@pytest.mark.parametrize(
    ("given", "tab", "told"),
    [
        (("", TEXT, None), "answer", "question is missing"),
        ((QUESTION, " ", None), "draft", "no prose"),
        (("word " * 2000, 4, 1), "fill", "shorten the text"),
    ],
)
def test_what_a_tab_cannot_do_is_told_in_a_line(client, given, tab, told):
    with pytest.raises(Exception, match=told) as raised:
        client.predict(*given, api_name=f"/{tab}")
    assert "\n" not in str(raised.value)


def test_a_space_is_complete_in_itself(folder, tmp_path):
    printed = run_recipe("app", "--space", tmp_path / "space")
    assert f"Space: {tmp_path / 'space'}" in printed
    about = yaml.safe_load((tmp_path / "space" / "README.md").read_text().split("---")[1])
    assert about["sdk"] == "gradio" and (tmp_path / "space" / about["app_file"]).is_file()
    (tmp_path / "space" / "recipes" / "settings" / "app" / "space.yaml").write_text((folder / "app.yaml").read_text())
    started = (
        "import gradio, hf_targets, lab.app_page as page;"
        "told = hf_targets.__file__, page.__file__, hf_targets.__version__;"
        "gradio.Blocks.launch = lambda self, **given: print(*told);"
    )
    program = tmp_path / "space" / about["app_file"]
    program.write_text(program.read_text().replace("runpy.run_path", f"{started}\nrunpy.run_path"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    library, page, version = done.stdout.splitlines()[-1].split()
    assert {library, page} <= set(map(str, (tmp_path / "space").rglob("*.py"))) and version == hf_targets.__version__
