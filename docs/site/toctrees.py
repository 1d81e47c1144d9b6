"""Derive the site's table of contents from the links of index pages.

An index page is an ordinary Markdown page with headings and lists or tables of links, so that it reads well on GitHub.
This extension adds a hidden toctree for each heading. An index page lists the pages of its own folder, and those of
folders below it up to the next index page. A page that no index page links is a warning of Sphinx, and so an error.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

_HEADING = re.compile(r"^#{1,6} +(.+?) *$")
_LINK = re.compile(r"\]\(([^)\s#]+\.md)(?:#[^)\s]*)?\)")


def setup(app: Any) -> dict[str, Any]:
    """Register the extension."""
    app.connect("source-read", _add_toctrees)
    return {"version": "1", "parallel_read_safe": True}


def _add_toctrees(app: Any, docname: str, content: list[str]) -> None:
    if posixpath.basename(docname) == "index":
        content[0] += toctrees(content[0], docname=docname, docs=Path(app.srcdir))


def toctrees(text: str, *, docname: str, docs: Path) -> str:
    """Return the hidden toctrees of an index page: one for each heading that has links to pages of the index."""
    folder = posixpath.dirname(docname)
    sections: dict[str, list[str]] = {}
    known: set[str] = set()
    heading = ""
    for line in text.splitlines():
        if match := _HEADING.match(line):
            heading = match[1]
        for link in _LINK.findall(line):
            page = posixpath.normpath(posixpath.join(folder, link)).removesuffix(".md")
            if page not in known and (docs / f"{page}.md").is_file() and index_of(page, docs=docs) == docname:
                known.add(page)
                sections.setdefault(heading, []).append(f"/{page}")
    return "".join(_toctree(caption, pages) for caption, pages in sections.items())


def index_of(page: str, *, docs: Path) -> str:
    """Return the index page that lists a page: the one of its folder, or of the nearest folder above it."""
    folder = posixpath.dirname(page)
    if posixpath.basename(page) == "index":
        if not folder:
            return ""
        folder = posixpath.dirname(folder)
    while folder and not (docs / folder / "index.md").is_file():
        folder = posixpath.dirname(folder)
    return posixpath.join(folder, "index")


def _toctree(caption: str, pages: list[str]) -> str:
    return "\n".join(("", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""))
