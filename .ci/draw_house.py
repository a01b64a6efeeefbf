"""Draw recipes/house.svg, the folders of the package and what they import, from the code.

    python .ci/draw_house.py

The shared layers lie below, each resting on those that it may import. Above are the targets; an arrow leads to another
target that is imported. tests/test_house.py holds what may be imported, and that the picture is the code's.
"""

import ast
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.test_house import LAYERS, PACKAGE, ROOT, folder_of, imports_of, module_of

PICTURE = ROOT / "recipes" / "house.svg"
_WIDTH, _ROW, _BOX, _GAP = 960, 64, 30, 12
_STYLE = """
  text { font: 13px sans-serif; fill: #1f2328; } .small { font-size: 12px; fill: #59636e; }
  rect { fill: #ffffff; stroke: #8c959f; } .layer { fill: #eef2f6; } .target + text { font-size: 12px; }
  line { stroke: #0969da; stroke-width: 1.4; }
  #tip { fill: #0969da; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; } .small { fill: #9198a1; } rect { fill: #151b23; stroke: #656c76; }
    .layer { fill: #212830; } line { stroke: #4493f8; } #tip { fill: #4493f8; }
  }
"""


def house() -> str:
    """Return the picture as SVG."""
    targets: dict[str, set[str]] = {}
    for path in PACKAGE:
        if (name := folder_of(module_of(path))) and name not in LAYERS:
            used = {folder_of(module) for module in imports_of(path)} - {None, name, *LAYERS}
            targets.setdefault(name, set()).update(used)
    floors: dict[int, list[str]] = {}
    for name in targets:
        floors.setdefault(_height(name, targets), []).append(name)
    places: dict[str, tuple[float, float]] = {}
    top = _ROW * (len(floors) - 1) + 2 * _GAP
    for floor, names in sorted(floors.items()):
        names.sort(key=lambda name: (_middle(targets[name], places), -_users(name, targets), name))
        wide = _WIDTH / max(len(names), 4)
        for number, name in enumerate(names):
            places[name] = (wide * (number + 0.5), top - floor * _ROW)
    return _svg(targets, places, max(len(names) for names in floors.values()))


def _height(name: str, uses: dict[str, set[str]]) -> int:
    return 1 + max((_height(other, uses) for other in uses[name]), default=-1)


def _users(name: str, uses: dict[str, set[str]]) -> int:
    return sum(name in used for used in uses.values())


def _middle(used: set[str], places: dict[str, tuple[float, float]]) -> float:
    return sum(places[name][0] for name in used) / len(used) if used else 0.0


def _svg(targets: dict, places: dict, most: int) -> str:
    wide, drawn = _WIDTH / most - _GAP, []
    for name, used in targets.items():
        for other in sorted(used):
            (x, y), (to, below) = places[name], places[other]
            drawn.append(
                f'<line x1="{x:.0f}" y1="{y + _BOX:.0f}" x2="{to:.0f}" y2="{below:.0f}" marker-end="url(#end)"/>'
            )
    for name, (x, y) in places.items():
        drawn.append(_box(x - wide / 2, y, wide, name))
    floor = max(y for _, y in places.values()) + _BOX + 2 * _GAP
    for number, name in enumerate(reversed(LAYERS)):
        told = (
            ast.get_docstring(ast.parse((ROOT / "hf_targets" / name / "__init__.py").read_text(encoding="utf-8"))) or ""
        )
        y = floor + number * (_BOX + 2)
        drawn.append(_box(_GAP / 2, y, _WIDTH - _GAP, name, told.splitlines()[0]))
    height = floor + len(LAYERS) * (_BOX + 2) + _GAP
    tip = '<marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" role="img">'
    title = "<title>The folders of hf_targets: targets above, shared layers below</title>"
    defs = f'<defs><style>{_STYLE}</style>{tip}<path id="tip" d="M0 0 8 4 0 8z"/></marker></defs>'
    return "\n".join([head, title, defs, *drawn, "</svg>"]) + "\n"


def _box(x: float, y: float, width: float, name: str, told: str = "") -> str:
    kind = "layer" if told else "target"
    rect = f'<rect class="{kind}" x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{_BOX}" rx="4"/>'
    if not told:
        return f'{rect}<text x="{x + width / 2:.0f}" y="{y + 20:.0f}" text-anchor="middle">{name}</text>'
    small = f'<text class="small" x="{x + 110:.0f}" y="{y + 20:.0f}">{told}</text>'
    return f'{rect}<text x="{x + 12:.0f}" y="{y + 20:.0f}">{name}</text>{small}'


if __name__ == "__main__":
    PICTURE.write_text(house(), encoding="utf-8")
    print(f"drawn: {PICTURE}")
