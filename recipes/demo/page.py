"""The page of the demo: three tabs, each with what it asks for and a handler that shows its result while it grows."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from itertools import groupby
from operator import itemgetter
from typing import Any

from demo.answers import AnsweringModel
from demo.canvas import GAP, KEPT, MASK, NEW, Canvas
from hf_targets.extras import require
from hf_targets.figures.page_style import shown
from lab.answer_page import answer_section

DRAFTED, OWN = "drafted", "own"
SHOWN = {
    DRAFTED: "drafted and accepted", OWN: "written by the model", MASK: "masked", NEW: "just filled in", KEPT: "text",
}  # fmt: skip
SECONDS_A_STATE = 0.25


def marked_text(pieces: Iterable[tuple[str, str]], kinds: Sequence[str]) -> str:
    """Return HTML of a text in pieces, each of one of the kinds, whose colours are told above it.

    >>> marked_text([("a", "own"), ("b", "own"), (" <c>", "drafted")], [])
    '<p class="note"></p><p class="text"><mark class="own">ab</mark><mark class="drafted"> &lt;c&gt;</mark></p>'
    """
    joined = ((kind, "".join(text for text, _ in run)) for kind, run in groupby(pieces, itemgetter(1)))
    text = "".join(f'<mark class="{kind}">{shown(run)}</mark>' for kind, run in joined if run)
    legend = " ".join(f'<mark class="{kind}">{SHOWN[kind]}</mark>' for kind in kinds)
    return f'<p class="note">{legend}</p><p class="text">{text}</p>'


def make_page(
    title: str, model: AnsweringModel, canvas: Canvas, documents: str, questions: Sequence[str], gaps: Sequence[str]
) -> Any:
    """Return the page; its handlers run one at a time.

    Args:
        documents: The text that stands in the field of documents first.
        questions, gaps: For the model and for the canvas, to choose from. The first one stands in its field.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    gr: Any = require("gradio", extra="demo")

    def helpful(handler: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """Return a handler whose ValueErrors are told to the reader."""

        @wraps(handler)
        def told(*given: Any) -> Iterator[Any]:
            try:
                yield from handler(*given)
            except ValueError as error:
                raise gr.Error(str(error), print_exception=False) from error

        return told

    @helpful
    def answer(question: str, pasted: str, files: list[str] | None) -> Iterator[str]:
        for one in model.with_phrases(model.ask(question, pasted, files or ())):
            yield answer_section(one, opened=True)

    @helpful
    def draft(question: str, pasted: str, files: list[str] | None) -> Iterator[tuple[str, str]]:
        asked = model.ask(question, pasted, files or ())
        for one in model.with_drafts(asked):
            passes = f"**{one.num_tokens} tokens in {one.passes} passes** of the model. Without drafts, each takes one."
            found = ", ".join(f"{count} found in the {source}" for source, count in one.accepted.items())
            told = f"{asked.note}{passes}" + f" Drafted and accepted: {found}." * bool(found)
            pieces = ((text, DRAFTED if by_draft else OWN) for text, by_draft in one.pieces)
            yield marked_text(pieces, (DRAFTED, OWN)), told

    @helpful
    def fill(text: str, num_steps: int, seed: int) -> Iterator[tuple[str, str]]:
        states = canvas.fill(text, num_steps=int(num_steps), seed=int(seed))
        for number, state in enumerate(states):
            time.sleep(SECONDS_A_STATE * bool(number))
            told = f'<p class="note">State {number} of {len(states) - 1}</p>'
            yield marked_text(state.tokens, (MASK, NEW, KEPT)) + told, state.picture

    def inputs(name: str) -> list[Any]:
        question = gr.Textbox(questions[0], label="Question", submit_btn=False)
        gr.Examples(list(questions), question, label="Examples")
        with gr.Accordion("Documents", open=False):
            told = "Your text. A line that begins with # names the document below it."
            pasted = gr.Textbox(documents, label=told, lines=6, max_lines=10)
            files = gr.File(label="Files", file_count="multiple", file_types=[".txt", ".md", ".rst"], height=130)
        return [question, pasted, files, gr.Button(name, variant="primary")]

    def html(kind: str) -> Any:
        return gr.HTML(elem_classes=kind, padding=False)

    once = {"concurrency_limit": 1, "concurrency_id": "model", "show_progress": "minimal"}
    with gr.Blocks(title=title, analytics_enabled=False) as page:
        gr.Markdown(f"# {title}")
        with gr.Tab("Phrases"):
            gr.Markdown(
                "The model answers from the documents. A marked phrase was written in one step, and leads to its place."
            )
            *given, button = inputs("Answer")
            button.click(answer, given, html("answer"), api_name="answer", **once)
        with gr.Tab("Drafts"):
            gr.Markdown(
                "Tokens that followed the same words in the documents are drafted. One pass of the model verifies a "
                "whole draft. The text is the same as without drafts."
            )
            *given, button = inputs("Write")
            button.click(draft, given, [html("answer"), gr.Markdown()], api_name="draft", **once)
        with gr.Tab("Canvas"):
            gr.Markdown(
                f"A masked diffusion model of {canvas.model.num_parameters() / 1e6:.1f} million parameters fills in "
                f"{canvas.length} tokens, in any order, and predicts them all as one curve. It was trained here on "
                f"{canvas.num_texts} short sentences of Python's reference, and knows nothing else."
            )
            told = f"Text with {GAP} for each missing token; the model also goes on after it"
            text = gr.Textbox(gaps[0], label=told)
            gr.Examples(list(gaps), text, label="Examples")
            with gr.Row():
                steps = gr.Slider(1, canvas.length, canvas.length // 2, step=1, label="Steps")
                seed = gr.Slider(0, 99, 0, step=1, label="Seed")
            button = gr.Button("Fill in", variant="primary")
            button.click(fill, [text, steps, seed], [html("answer"), html("curve")], api_name="fill", **once)
    return page
