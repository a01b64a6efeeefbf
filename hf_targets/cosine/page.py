"""A page on the embeddings of one or several models, side by side."""

import base64
import io
from collections.abc import Mapping
from pathlib import Path

from hf_targets.cosine.figures import FIGURES
from hf_targets.cosine.inspection import Inspection, inspection_columns
from hf_targets.figures.page_style import page, shown, table


def write_inspection(inspections: Mapping[str, Inspection], folder: Path | str, *, footer: str = "") -> Path:
    """Write `embeddings.html`, complete in itself, and its figures as PNGs beside it; return the page's path.

    Args:
        inspections: To each model's name, as a reader should see it, what `inspect_embeddings` found.
        footer: A last line, such as the command that wrote the page.
    Raises:
        ValueError: If there is no model.
        ImportError: If matplotlib is missing.
    """
    if not inspections:
        raise ValueError("there must be embeddings to show, got none; call inspect_embeddings for a model")
    folder = Path(folder)
    parts = [table(*inspection_columns(inspections))]
    images: dict[str, bytes] = {}
    for name, (draw, caption) in FIGURES.items():
        if name == "norms" and all(one.frequencies is None for one in inspections.values()):
            continue
        buffer = io.BytesIO()
        draw(inspections).savefig(buffer, format="png")
        images[name] = buffer.getvalue()
        data = base64.b64encode(images[name]).decode()
        parts.append(
            f'<figure>\n<img src="data:image/png;base64,{data}" alt="{shown(caption)}">\n'
            f"<figcaption>{shown(caption)}</figcaption>\n</figure>"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, image in images.items():
        (folder / f"{name}.png").write_bytes(image)
    path = folder / "embeddings.html"
    path.write_text(page("Embeddings", "\n".join(parts), footer=footer), encoding="utf-8")
    return path
