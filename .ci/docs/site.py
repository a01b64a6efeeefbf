"""Gives MkDocs the pages of the repository where they stand, the notebooks, the reference and a gallery; checks all."""

import posixpath
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import griffe
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

sys.path.insert(0, str(Path(__file__).parent))
from docstrings import PATHS, ROOT, link_names

_ALONE = "---\nhide: [navigation]\n---\n\n"
"""Heads a page that has no others beside it in the navigation."""
_LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")
_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
_NOTEBOOK_PART = re.compile(
    r"^```.*?^```$|^    [^\n]*$|^#+ (?P<heading>[^\n]+)$|(?P<figure>!\[png\])|\$(?P<formula>[^$\n]+)\$", re.M | re.S
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add all pages, what they link to, and the navigation."""

    def add(uri: str, content: str | bytes) -> str:
        files.append(File.generated(config, uri, content=content))
        return uri

    pages = {"README.md": (ROOT / "README.md").read_text(encoding="utf-8")}
    for path in sorted((ROOT / "recipes").rglob("*.md"), key=lambda path: (path.stem != "README", path.stem.lower())):
        pages[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        pages[f"notebooks/{path.stem}.md"], images = read_notebook(path)
        for name, content in images.items():
            add(f"notebooks/{name}", content)
    for uri, text in pages.items():
        alone = _ALONE if uri == "README.md" else ""
        add(uri, alone + link_names(re.sub(r"(\]\([^)\s:]+)\.ipynb\b", r"\1.md", text)))
        for target in _LINK.findall(text):  # scripts, settings, images
            linked = posixpath.normpath(posixpath.join(posixpath.dirname(uri), target))
            if (ROOT / linked).is_file() and not linked.endswith((".md", ".ipynb")) and linked not in files.src_uris:
                files.append(File.generated(config, linked, abs_src_path=str(ROOT / linked)))
    folders = {
        folder: [add(f"reference/{name}.md", f"---\ntitle: {name}\n---\n\n::: {PATHS[name]}\n") for name in names]
        for folder, names in public_names().items()
    }
    config.nav = [
        {"Home": "README.md"},
        {"Recipes and results": [uri for uri in pages if uri.startswith("recipes/")]},
        {"Notebooks": [uri for uri in pages if uri.startswith("notebooks/")]},
        {"Reference": [add("reference/index.md", reference_index()), *({key: uris} for key, uris in folders.items())]},
        {"Gallery": add("gallery.md", gallery(pages))},
    ]
    return files


def read_notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook with its stored outputs as Markdown, and its figures.

    The alternative text of a figure is the heading above it, and formulas are MathML, which browsers draw.
    """
    body, resources = MarkdownExporter().from_filename(str(path), resources={"unique_key": path.stem})
    heading = path.stem

    def rewrite(part: re.Match) -> str:
        nonlocal heading
        heading = part["heading"] or heading
        if part["formula"]:
            return convert(part["formula"])
        return f"![{heading}]" if part["figure"] else part[0]

    return _NOTEBOOK_PART.sub(rewrite, body), resources["outputs"]


def public_names() -> dict[str, list[str]]:
    """Return the public names of each folder of the package."""
    folders: dict[str, list[str]] = {}
    for name, path in PATHS.items():
        folders.setdefault(path.split(".")[1], []).append(name)
    return folders


def reference_index() -> str:
    """Return a page with what each folder is, and the first sentence of each public name."""
    package = griffe.load("hf_targets", search_paths=[ROOT], resolve_aliases=True)
    lines = ["# Reference", "Everything that `from hf_targets import ...` gives, by the folder that it comes from."]
    for folder, names in public_names().items():
        lines += [f"## {folder}", package[folder].docstring.value, ""]
        for name in names:
            told = package[PATHS[name].removeprefix("hf_targets.")].docstring.value
            lines.append(f"- `{name}`: {told.split(chr(10) * 2)[0]}")
    return link_names("\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:]))


def gallery(pages: dict[str, str]) -> str:
    """Return a page with every figure of the pages and notebooks; each leads to its page."""
    figures = [
        f"[![{told}]({posixpath.normpath(posixpath.join(posixpath.dirname(uri), source))}) {told}]({uri})"
        for uri, text in pages.items()
        for told, source in _IMAGE.findall(text)
    ]
    told = "# Gallery\n\nThe figures of all pages and notebooks. Each leads to its page."
    return "\n\n".join([_ALONE + told, '<div class="gallery" markdown>', *figures, "</div>\n"])


class Links(HTMLParser):
    """The anchors of a page, its links, and what it loads from elsewhere."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the anchors and links of one element."""
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if name in ("href", "src") and value:
                local = not urlsplit(value).scheme and not value.startswith("//")
                if local:
                    self.links.append(value)
                elif tag != "a" and not value.startswith("data:"):
                    self.loaded.append(value)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site with a broken link or anchor, with a part from another host, or without a public name."""
    site = Path(config.site_dir)
    pages = {path: Links(path) for path in site.rglob("*.html") if path.name != "404.html"}
    anchors = set().union(*(page.anchors for page in pages.values()))
    wrong = [f"no page tells of {name}" for name, path in PATHS.items() if path not in anchors]
    for path, page in pages.items():
        wrong += [f"{path.relative_to(site)} loads {url}" for url in page.loaded]
        for link in page.links:
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].anchors):
                wrong.append(f"{path.relative_to(site)} links to {link}")
    if wrong:
        raise PluginError("\n".join(sorted(set(wrong))))
