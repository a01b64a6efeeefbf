"""The page of the demo: three tabs, each with what it asks for and a handler that shows its result while it grows."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

from hf_targets.extras import require
from lab.answer_page import answer_section
from lab.live_answers import AnsweringModel
from lab.live_canvas import GAP, KEPT, MASK, NEW, Canvas

DRAFTED, OWN = "drafted and accepted", "written by the model"
SECONDS_A_STATE = 0.25
Marked = list[tuple[str, str | None]]


def make_page(title: str, model: AnsweringModel, canvas: Canvas, documents: str, questions: Sequence[str]) -> Any:
    """Return the page; its handlers run one at a time.

    Args:
        documents: The text that stands in the field of documents first.
        questions: To choose from; the first one is asked if nothing is changed.
    """
    gr: Any = require("gradio", extra="demo")

    def helpful(handler: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """Return a handler whose ValueErrors are told to the reader."""

        @wraps(handler)
        def told(*given: Any) -> Iterator[Any]:
            try:
                yield from handler(*given)
            except ValueError as error:
                raise gr.Error(str(error), title="Not possible", print_exception=False) from error

        return told

    @helpful
    def answer(question: str, pasted: str, files: list[str] | None) -> Iterator[str]:
        for one in model.with_phrases(model.ask(question, pasted, files or ())):
            yield answer_section(one, opened=True)

    @helpful
    def draft(question: str, pasted: str, files: list[str] | None) -> Iterator[tuple[Marked, str]]:
        asked = model.ask(question, pasted, files or ())
        for one in model.with_drafts(asked):
            passes = f"**{one.num_tokens} tokens in {one.passes} passes** of the model. Without drafts, each takes one."
            found = ", ".join(f"{count} found in the {source}" for source, count in one.accepted.items())
            told = f"{asked.note}{passes}" + f" Drafted and accepted: {found}." * bool(found)
            yield [(text, DRAFTED if by_draft else OWN) for text, by_draft in one.pieces], told

    @helpful
    def fill(text: str, num_steps: int, seed: int) -> Iterator[tuple[Marked, str, str]]:
        states = canvas.fill(text, num_steps=int(num_steps), seed=int(seed))
        for number, state in enumerate(states):
            time.sleep(SECONDS_A_STATE * bool(number))
            yield [one for one in state.tokens if one[0]], state.picture, f"State {number} of {len(states) - 1}"

    def inputs(name: str) -> list[Any]:
        question = gr.Textbox(questions[0], label="Question", submit_btn=False)
        gr.Examples(list(questions), question, label="Examples")
        with gr.Accordion("Documents", open=False):
            told = "Your text. A line that begins with # names the document below it."
            pasted = gr.Textbox(documents, label=told, lines=6, max_lines=10)
            files = gr.File(label="Files", file_count="multiple", file_types=[".txt", ".md", ".rst"], height=130)
        return [question, pasted, files, gr.Button(name, variant="primary")]

    def marked(label: str, **colours: str) -> Any:
        shown = {"show_legend": True, "show_inline_category": False, "combine_adjacent": True}
        return gr.HighlightedText(label=label, color_map=colours, **shown)

    once = {"concurrency_limit": 1, "concurrency_id": "model", "show_progress": "minimal"}
    with gr.Blocks(title=title, analytics_enabled=False) as page:
        gr.Markdown(f"# {title}")
        with gr.Tab("Phrases"):
            gr.Markdown(
                "The model answers from the documents. A marked phrase was written in one step, and leads to its place."
            )
            *given, button = inputs("Answer")
            button.click(answer, given, gr.HTML(elem_classes="answer"), api_name="answer", **once)
        with gr.Tab("Drafts"):
            gr.Markdown(
                "Tokens that followed the same words in the documents are drafted. One pass of the model verifies a "
                "whole draft. The text is the same as without drafts."
            )
            *given, button = inputs("Write")
            shown = [marked("Answer", **{DRAFTED: "green", OWN: "gray"}), gr.Markdown()]
            button.click(draft, given, shown, api_name="draft", **once)
        with gr.Tab("Canvas"):
            gr.Markdown(
                f"A masked diffusion model of {canvas.model.num_parameters() / 1e6:.1f} million parameters fills in "
                f"{canvas.length} tokens, in any order. It was trained here, on {canvas.num_texts} short sentences "
                "about Python, and knows nothing else. It predicts all tokens as one curve."
            )
            told = f"Text with {GAP} for each missing token; the model also goes on after it"
            gaps = gr.Textbox(f"The {GAP} statement {GAP} {GAP}", label=told)
            with gr.Row():
                steps = gr.Slider(1, canvas.length, 12, step=1, label="Steps")
                seed = gr.Slider(0, 99, 0, step=1, label="Seed")
            button = gr.Button("Fill in", variant="primary")
            row = marked("Canvas", **{MASK: "gray", NEW: "orange", KEPT: "blue"})
            shown = [row, gr.HTML(elem_classes="curve"), gr.Markdown()]
            button.click(fill, [gaps, steps, seed], shown, api_name="fill", **once)
    return page
