"""A web page complete in itself, in the reader's light or dark setting: texts, marks, tables and figures."""

import re
from html import escape

_NOT_SHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_PAGE = """<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ --page: #fff; --text: #1f2328; --quiet: #59636e; --mark: #dbe9ff; --marked: #0b3d91; --line: #d1d9e0; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --page: #15181d; --text: #e6e8eb; --quiet: #a3acb8; --mark: #1c3a68; --marked: #d5e5ff; --line: #3a424d; }}
}}
body {{ background: var(--page); color: var(--text); font: 1.0625rem/1.65 Georgia, "Times New Roman", serif;
  max-width: 44rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }}
h1 {{ font-size: 1.35rem; line-height: 1.3; }}
h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
.text {{ white-space: pre-wrap; }}
.prompt, .note, footer {{ color: var(--quiet); }}
.note, ol, footer {{ font: .9rem/1.55 system-ui, sans-serif; }}
ol {{ padding-left: 2rem; }}
li {{ margin-bottom: .6rem; }}
mark {{ background: var(--mark); border-radius: .2rem; padding: .1rem 0; box-decoration-break: clone;
  -webkit-box-decoration-break: clone; }}
mark, mark a, b {{ color: var(--marked); }}
mark a {{ text-decoration: none; }}
mark a:hover {{ text-decoration: underline; }}
sup {{ font: .65em/1 system-ui, sans-serif; padding-left: .1em; }}
li > a {{ color: var(--marked); padding: 0 .4rem; }}
a:focus-visible {{ outline: .15rem solid var(--marked); outline-offset: .1rem; border-radius: .2rem; }}
:target {{ outline: .12rem solid var(--marked); outline-offset: .15rem; scroll-margin: 4rem; }}
details {{ border-left: .15rem solid var(--line); padding-left: .8rem; margin: .5rem 0; }}
summary {{ cursor: pointer; }}
table {{ border-collapse: collapse; font: .9rem/1.5 system-ui, sans-serif; }}
th, td {{ border-bottom: 1px solid var(--line); padding: .25rem .8rem .25rem 0; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }}
figure {{ margin: 1.5rem 0; }}
img {{ max-width: 100%; border-radius: .2rem; }}
figcaption {{ color: var(--quiet); font: .9rem/1.55 system-ui, sans-serif; }}
footer {{ border-top: 1px solid var(--line); margin-top: 2rem; padding-top: .8rem; }}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
{footer}</body>
</html>
"""


def page(title: str, body: str, *, footer: str = "", language: str = "en") -> str:
    """Return an HTML page, complete in itself, without a script or another file.

    Args:
        title: A text.
        body: HTML, below the title.
        footer: A text, or empty: none.
        language: Of the texts, a tag of BCP 47 such as "de".
    """
    last = f"<footer>{shown(footer)}</footer>\n" if footer else ""
    return _PAGE.format(title=shown(title), language=escape(language), body=body, footer=last)


def printable(text: str) -> str:
    """Return a text for a terminal or file, with a sign in place of control characters: a text may be anyone's.

    Of these only tabs and line ends stay, each line end as "\\n".

    >>> printable("a\\r\\nb \\x1b[2J\\x00")
    'a\\nb \ufffd[2J\ufffd'
    """
    return _NOT_SHOWN.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))


def shown(text: str) -> str:
    """Return a text `printable` and escaped, for a page.

    >>> shown("a <b> & \\x00")
    'a &lt;b&gt; &amp; \ufffd'
    """
    return escape(printable(text))
