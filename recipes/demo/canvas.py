"""A canvas that a small masked diffusion model fills in, state by state, with its sentence curve as a picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from train_mdlm_curve import SETTINGS
from train_mdlm_curve import main as train
from transformers import AutoTokenizer

from demo.streamed import token_texts
from hf_targets import MdlmForMaskedDiffusion
from hf_targets.figures.page_style import shown
from hf_targets.masked_diffusion.sampling.streaming import CanvasTrace
from hf_targets.maths.bsplines import basis_matrix
from lab.settings import parse_mapping

GAP, MASK, NEW, KEPT = "_", "masked", "new", "text"
SAMPLER, TEMPERATURE = "confidence", 0.5  # what a model that has learnt little is surest of
_WIDTH, _HEIGHT, _EDGE, _BETWEEN = 640, 400, 40, 8


class State(NamedTuple):
    """The tokens of a canvas, each with MASK, NEW (since the state before) or KEPT, and a picture of its curve.

    Special tokens have no text.
    """

    tokens: Sequence[tuple[str, str]]
    picture: str


def load_canvas(folder: Path, texts: Sequence[str], settings: dict[str, Any]) -> "Canvas":
    """Return the canvas of the model in a folder; if there is none, it is trained on `texts` first.

    Args:
        settings: Of recipes/train_mdlm_curve.py, with a curve.
    """
    file = folder / "texts.txt"
    if not Path(folder, "model.safetensors").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(
            "\n".join([*texts, *texts]) + "\n", encoding="utf-8"
        )  # pairs of letters merge that are there twice
        print(f"training the model of the canvas on {len(texts)} sentences, once; it is kept in {folder}", flush=True)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # so small a model waits for its threads, thirty times as long beside other programs
        train(*parse_mapping({**settings, "dataset": str(file), "output_dir": str(folder)}, *SETTINGS))
        torch.set_num_threads(threads)
    num_texts = len(set(file.read_text(encoding="utf-8").splitlines()))
    return Canvas(
        MdlmForMaskedDiffusion.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder), num_texts
    )


@dataclass
class Canvas:
    """A masked diffusion model with one curve, its tokenizer, and the number of texts that it was trained on."""

    model: MdlmForMaskedDiffusion
    tokenizer: Any
    num_texts: int

    @property
    def length(self) -> int:
        """Tokens of a canvas."""
        return self.model.config.max_position_embeddings

    def canvas_of(self, text: str) -> Tensor:
        """Return a canvas, (1, length): the begin token, the text with a mask for each GAP, then masks.

        Raises:
            ValueError: If the text is too long.
        """
        ids = [self.tokenizer.bos_token_id]
        for number, part in enumerate(text.split(GAP)):
            ids += [self.model.config.mask_token_id] * bool(number)
            part = part.rstrip()  # a token has the space before it
            ids += self.tokenizer(part, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        if len(ids) > self.length:
            raise ValueError(f"the canvas has room for {self.length - 1} tokens, got {len(ids) - 1}; shorten the text")
        return torch.tensor([[*ids, *[self.model.config.mask_token_id] * (self.length - len(ids))]])

    @torch.no_grad()
    def fill(self, text: str, *, num_steps: int, seed: int) -> list[State]:
        """Return all states of a canvas, from the one with the most masks to that with none."""
        canvas, trace = self.canvas_of(text), CanvasTrace()
        generator = torch.Generator().manual_seed(seed)
        if (canvas == self.model.config.mask_token_id).any():
            drawing = {"sampler": SAMPLER, "temperature": TEMPERATURE, "generator": generator}
            self.model.generate(canvas, num_steps=num_steps, streamer=trace, **drawing)
        canvases = torch.cat([canvas, *trace.canvases])
        states, before = [], canvas[0]
        for row, line, control in zip(canvases, *self._drawn(self.model(canvases).control_points), strict=True):
            tokens = self._tokens(row, before)
            states.append(State(tokens, _picture(line.tolist(), control.tolist(), tokens)))
            before = row
        return states

    def _tokens(self, row: Tensor, before: Tensor) -> list[tuple[str, str]]:
        mask, texts = self.model.config.mask_token_id, token_texts(row.tolist(), self.tokenizer)
        kinds = [MASK if now == mask else KEPT if now == then else NEW for now, then in zip(row, before, strict=True)]
        texts = [f" {GAP}" if kind == MASK else text for text, kind in zip(texts, kinds, strict=True)]
        return list(zip(texts, kinds, strict=True))

    def _drawn(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return the curves of control points (states, N, dim) and these points, in the picture: (states, _, 2).

        They are seen along the two main axes of all curves. A curve has _BETWEEN points from one token to the next.
        """
        curve, count = self.model.config.curve, (self.length - 1) * _BETWEEN + 1
        basis = basis_matrix(count, points.shape[1], curve.degree_for(self.length), curve.margin)
        curves = basis.T.to(points.dtype) @ points
        middle = curves.flatten(0, 1).mean(dim=0)
        axes = torch.linalg.svd(curves.flatten(0, 1) - middle, full_matrices=False).Vh[:2].T
        flat = (curves - middle) @ axes
        least, most = flat.flatten(0, 1).aminmax(dim=0)
        scale = (torch.tensor([_WIDTH, _HEIGHT]) - 2 * _EDGE) / (most - least).clamp(min=1e-6)
        return (flat - least) * scale + _EDGE, ((points - middle) @ axes - least) * scale + _EDGE


def _picture(line: list[list[float]], control: list[list[float]], tokens: Sequence[tuple[str, str]]) -> str:
    """Return an SVG of a curve with its control points, and its tokens where they lie on it."""
    path, polygon = (" ".join(f"{x:.0f},{y:.0f}" for x, y in points) for points in (line, control))
    parts = [f'<polyline class="control" points="{polygon}"/><polyline class="curve" points="{path}"/>']
    for (x, y), (text, kind) in zip(line[::_BETWEEN], tokens, strict=True):
        parts.append(f'<circle class="{kind}" cx="{x:.0f}" cy="{y:.0f}" r="{4 if text else 2}"/>')
        label = "" if kind == MASK else shown(text.strip())
        parts += [f'<text class="{kind}" x="{x + 7:.0f}" y="{y - 6:.0f}">{label}</text>'] * bool(label)
    told = "The curve of the canvas, seen along its two main axes"
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{told}">{"".join(parts)}</svg>'
