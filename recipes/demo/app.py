"""Show three targets in a browser: phrases of your documents, drafted tokens, and a canvas with its sentence curve.

    make models
    python recipes/demo/app.py recipes/settings/demo/app/cpu.yaml  # http://127.0.0.1:7860
    python recipes/demo/app.py recipes/settings/demo/app/cpu.yaml --space build/space  # a folder for a Space of the Hub
    python recipes/demo/app.py recipes/settings/demo/app/cpu.yaml --space build/space --space_repository ME/hf-targets

    Phrases   the model answers from passages of the documents; their phrases light up, with where they come from
    Drafts    tokens that were looked up and accepted stand beside those that the model wrote, with its passes
    Canvas    a small masked diffusion model fills gaps; it is trained at the first start, in about a minute

It needs the extras demo and phrases. Nothing leaves the machine, but for what `--space_repository` uploads.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from demo.answers import AnsweringModel
from demo.canvas import load_canvas
from demo.page import make_page
from demo.space import push_space, write_space
from lab.passages import prose_of, read_texts
from lab.settings import RECIPES, parse_settings

TITLE = "Richer targets than the next token"


@dataclass
class Setup:
    """Which models, and where the page is."""

    canvas: dict[str, Any] = field(metadata={"help": "Settings of train_mdlm_curve.py for the model of the canvas."})
    questions: list[str] = field(metadata={"help": "To choose from."})
    topics: list[str] = field(
        metadata={"help": "Of Python's reference: the first documents, and what the canvas knows."}
    )
    gaps: list[str] = field(metadata={"help": "Texts for the canvas to choose from, with _ for each missing token."})
    model: str = field(default="models/smollm2-135m", metadata={"help": "A causal model with a chat template."})
    num_passages: int = field(default=2, metadata={"help": "Read before an answer, the nearest to its question."})
    passage_words: int = field(default=50, metadata={"help": "At which a passage ends, after a paragraph."})
    new_tokens: int = field(default=80, metadata={"help": "Of an answer, at most."})
    output_dir: str = field(default="runs/demo/app", metadata={"help": "Folder of the model of the canvas."})
    port: int | None = field(default=None, metadata={"help": "Of the page. None: 7860, or the next one that is free."})
    space: str | None = field(default=None, metadata={"help": "Only write a Space of the Hub into this folder."})
    space_repository: str | None = field(default=None, metadata={"help": "Upload it to this repository of the Hub."})


def short_sentences(texts: Iterable[str]) -> list[str]:
    """Return the sentences of 4 to 10 words in the prose of texts, each once."""
    cut = (one for text in texts for paragraph in prose_of(text) for one in re.split(r"(?<=[.]) ", paragraph))
    return sorted({one for one in cut if 4 <= len(one.split()) <= 10 and one[0].isupper() and one.endswith(".")})


def load_page(setup: Setup) -> Any:
    """Return the page with its models; that of the canvas is trained if it is not there."""
    if setup.model.startswith("models/") and not Path(setup.model).is_dir():
        raise SystemExit(f"{setup.model} is not there; fetch it with `make models`")
    reference = read_texts(None)
    if unknown := set(setup.topics) - set(reference):
        raise SystemExit(f"Python's reference has no topics {sorted(unknown)}; it has {', '.join(reference)}")
    texts = {topic: reference[topic] for topic in setup.topics}
    model = AnsweringModel(setup.model, setup.num_passages, setup.passage_words, setup.new_tokens)
    canvas = load_canvas(Path(setup.output_dir, "canvas"), short_sentences(texts.values()), setup.canvas)
    documents = "\n\n".join("\n\n".join([f"# {name}", *prose_of(text)]) for name, text in texts.items())
    return make_page(TITLE, model, canvas, documents, setup.questions, setup.gaps)


def launch(page: Any, setup: Setup, **given: Any) -> Any:
    """Serve the page; no font, script or count is asked of another machine."""
    given |= {"server_port": setup.port, "css_paths": RECIPES / "demo" / "page.css", "ssr_mode": False}
    return page.launch(**given)


def main(setup: Setup) -> None:
    """Write a Space, or show the page until Ctrl-C."""
    if setup.space is None:
        if setup.space_repository is not None:
            raise SystemExit("--space_repository uploads a folder; name it with --space")
        launch(load_page(setup), setup)
        return
    write_space(Path(setup.space), title=TITLE, text=(__doc__ or "").splitlines()[0])
    print(f"Space: {setup.space}")
    if setup.space_repository is not None:
        print(f"Uploaded: {push_space(Path(setup.space), setup.space_repository)}")


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
