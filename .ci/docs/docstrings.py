"""How the reference reads our docstrings: sections without blank lines, `Source:`, doctests, and fields with help."""

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[2]


def public_paths(folder: str = "hf_targets") -> dict[str, str]:
    """Return the public names as the stub of a folder tells them, each with the path of what it is."""
    paths: dict[str, str] = {}
    stub = ROOT.joinpath(*folder.split("."), "__init__.pyi").read_text(encoding="utf-8")
    for node in ast.parse(stub).body:
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            module = f"{folder}.{node.module}"
            paths |= public_paths(module) if alias.name == "*" else {alias.name: f"{module}.{alias.name}"}
    return paths


PATHS = public_paths()
_NAME = re.compile(rf"(?<![`\[])`({'|'.join(PATHS)})`(?![`\]])")
_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Source|Departs|Related):(?: +(.+))?")


def link_names(text: str) -> str:
    """Return Markdown in which each public name that stands as code leads to its page of the reference."""
    return _NAME.sub(lambda name: f"[{name[0]}][{PATHS[name[1]]}]", text)


def as_markdown(docstring: str) -> str:
    """Return a docstring of ours as the Google style that Griffe reads, with doctests as code.

    A section of one word and indented entries stays one; `Source: ...` and its like become paragraphs.
    """
    lines: list[str] = []
    paragraph = code = False
    for line in re.sub(r"(?<=\S)  (?=(Departs|Related): )", "\n", docstring).splitlines():
        section = _SECTION.fullmatch(line)
        if section:
            lines.append("")
        if code and not line:
            lines.append("```")
            code = False
        elif not code and line.startswith(">>> "):
            lines += ["", "```pycon"]
            code = True
        paragraph = bool(section and section[2]) or (paragraph and line.startswith(" "))
        if section and section[2]:
            line = f"**{section[1]}:** {section[2]}"
        lines.append(line.strip() if paragraph else line)
    return link_names("\n".join(lines + ["```"] * code))


class Docstrings(griffe.Extension):
    """Rewrites docstrings, and takes those of configuration fields from their help texts."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Read `field(default=..., metadata={"help": ...})` as a default and a docstring."""
        call = getattr(node, "value", None)
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "field":
            return
        told = {keyword.arg: keyword.value for keyword in call.keywords}
        attr.value = ast.unparse(told["default"]) if "default" in told else None
        if "metadata" in told:
            shared = any(isinstance(part, ast.Name) for part in ast.walk(told["metadata"]))
            names = vars(import_module(attr.module.path)) if shared else {}  # sentences that several fields have
            attr.docstring = griffe.Docstring(eval(ast.unparse(told["metadata"]), names)["help"], parent=attr)
