"""The demo in a browser: what its page answers, what it says of bad input, and the folder of a Space."""

import asyncio
import os
import re
import subprocess
import sys

import pytest
import yaml

import hf_targets
from lab.settings import parse_settings
from tests.browser import CHROMIUM, browser
from tests.programs import ROOT
from tests.recipes.answering import QUESTION, TEXT, write_models
from tests.recipes.running import run_recipe

gradio = pytest.importorskip("gradio")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a tiny model and with settings that take it."""
    folder = tmp_path_factory.mktemp("app")
    write_models(folder)
    told = yaml.safe_load((ROOT / "recipes" / "settings" / "demo" / "app" / "smoke.yaml").read_text())
    told |= {"model": str(folder / "writer"), "output_dir": str(folder / "out"), "space": None, "questions": [QUESTION]}
    (folder / "app.yaml").write_text(yaml.safe_dump(told))
    return folder


@pytest.fixture(scope="module")
def client(folder):
    """Return a client of the page, which runs in this process, with a document that the model answers from."""
    from gradio_client import Client

    from demo import app

    given = ["--topics", "pets", "with", "--num_passages", "1"]
    (setup,) = parse_settings(app.Setup, arguments=[str(folder / "app.yaml"), *given])
    texts = {"pets": TEXT, **app.read_texts(None)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "read_texts", lambda folder: texts)
        page = app.load_page(setup)
    _, address, _ = app.launch(page, setup, prevent_thread_lock=True, quiet=True)
    yield Client(address, verbose=False)
    page.close()


def test_each_tab_answers_while_it_works(client):
    answers = client.submit(QUESTION, TEXT, None, api_name="/answer")
    pages = [*answers]
    assert re.search("<mark><a href=.*cat", pages[-1]) and len(pages) > 2
    drafted, told = client.predict(QUESTION, TEXT, None, api_name="/draft")
    assert "passes" in told and re.search('<mark class="drafted">[^<]*cat', drafted)
    states = [*client.submit("The _ ", 4, 1, api_name="/fill")]
    assert "<svg" in states[-1][1] and re.search(r"State (\d+) of \1<", states[-1][0])


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


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_shows_phrases_with_their_places_on_a_narrow_screen_and_asks_nobody_else(client, tmp_path):
    async def read() -> None:
        async with browser(tmp_path) as page:
            await page.open(f"{client.src}?__theme=dark", width=360)
            await page.press("Answer")
            await page.until("!!document.querySelector('.answer mark a')")
            link = "document.querySelector('.answer mark a')"
            await page.until(f"document.querySelector({link}.hash).textContent.length > 2")
            assert await page.value("document.documentElement.scrollWidth <= innerWidth")
            await page.press("Canvas")
            await page.press("Fill in")
            await page.until("document.querySelectorAll('.curve circle').length > 5")
            assert page.errors == [] and len(page.addresses) > 5
            assert {address.split("/")[2] for address in page.addresses if address.startswith("http")} == {
                client.src.split("/")[2]
            }

    asyncio.run(read())


def test_a_space_is_complete_in_itself(folder, tmp_path):
    printed = run_recipe("demo/app", "--space", tmp_path / "space")
    assert f"Space: {tmp_path / 'space'}" in printed
    about = yaml.safe_load((tmp_path / "space" / "README.md").read_text().split("---")[1])
    assert about["sdk"] == "gradio" and (tmp_path / "space" / about["app_file"]).is_file()
    settings = tmp_path / "space" / "recipes" / "settings" / "demo" / "app" / "space.yaml"
    settings.write_text((folder / "app.yaml").read_text())
    started = (
        "import gradio, hf_targets, demo.page as page;"
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
