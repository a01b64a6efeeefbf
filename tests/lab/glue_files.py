"""Files of four tasks of GLUE as the benchmark distributes them, with made sentences."""

import gzip
from collections.abc import Callable
from pathlib import Path

LINES: dict[str, tuple[str, Callable[[int], str]]] = {
    "CoLA": ("", lambda n: f"gj04\t{n % 2}\t{'' if n % 2 else '*'}\tThe cats number {n} sleep."),
    "SST-2": ("sentence\tlabel\n", lambda n: f"film number {n} is {'good' if n % 2 else 'bad'} \t{n % 2}"),
    "MRPC": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n",
        lambda n: f'{n % 2}\t{n}\t{n}\tHe said " no {n} .\tHe said " yes {n} .',
    ),
    "RTE": (
        "index\tsentence1\tsentence2\tlabel\n",
        lambda n: f"{n}\tIt rains in {n}.\tIt is wet.\t{'not_' if n % 2 else ''}entailment",
    ),
}


def write_glue(root: Path, tasks: tuple[str, ...] = tuple(LINES), sizes: tuple[int, int] = (12, 6)) -> Path:
    """Write train.tsv.gz and dev.tsv of tasks below root/glue, and return the root."""
    for task in tasks:
        head, line = LINES[task]
        folder = root / "glue" / task
        folder.mkdir(parents=True, exist_ok=True)
        train, dev = (head + "".join(line(n) + "\n" for n in range(size)) for size in sizes)
        (folder / "train.tsv.gz").write_bytes(gzip.compress(train.encode()))
        (folder / "dev.tsv").write_text(dev, encoding="utf-8")
    return root
