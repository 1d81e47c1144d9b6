"""Link files of the repository that are outside of docs/: `../lakehouse/errors.py` works on GitHub and on the site.

Each file or folder that a page links becomes a page of the site below `repository/`: Markdown is rendered, other
text is shown with its syntax highlighted, and a folder lists its files. A link to a file that does not exist is a
warning.
"""

from __future__ import annotations

import html
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

_FOLDER = "repository"
_URL = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|#|/)")
_FOLDER_FILES = (".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".json", ".csv")
_SKIPPED = ("__pycache__",)


def setup(app: Any) -> dict[str, Any]:
    """Register the extension."""
    app.add_transform(RepositoryLinks)
    app.connect("env-purge-doc", _purge)
    app.connect("env-merge-info", _merge)
    app.connect("html-collect-pages", _collect)
    return {"version": "1", "parallel_read_safe": True, "env_version": 1}


class RepositoryLinks(SphinxTransform):
    """Replace links that leave docs/ by links to the pages of this extension."""

    # Before Sphinx collects the files to download.
    default_priority = 10

    def apply(self, **_: Any) -> None:
        """Replace the links of one document."""
        docname = self.env.docname
        for node in [*self.document.findall(_is_link)]:
            path = linked_path(node, docname=docname, root=Path(self.env.srcdir).parent)
            if path is not None:
                _linked(self.env).setdefault(docname, set()).add(path)
                uri = relative_uri(docname, page_of(path))
                node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))


def linked_path(node: nodes.Element, *, docname: str, root: Path) -> str | None:
    """Return the path of the repository that a link names; None if it is in docs/ or does not exist."""
    target = node.get("reftarget", "").partition("#")[0]
    if node.get("refdomain") == "doc":
        # MyST names Markdown files outside of docs/ by their absolute paths without suffix.
        path = posixpath.relpath(f"{target}.md", root) if target.startswith(f"{root}/") else "docs"
    else:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(docname), target))
    inside = path == "docs" or path.startswith(("docs/", "../"))
    return None if inside or not (root / path).exists() else path


def page_of(path: str) -> str:
    """Return the site's page for a path of the repository."""
    return f"{_FOLDER}/{path.strip('/')}"


def relative_uri(source: str, target: str) -> str:
    """Return the link from one page of the site to another."""
    return posixpath.relpath(target, posixpath.dirname(source) or ".") + ".html"


def _is_link(node: nodes.Node) -> bool:
    return isinstance(node, addnodes.download_reference | addnodes.pending_xref)


def _linked(env: Any) -> dict[str, set[str]]:
    if not hasattr(env, "repository_links"):
        env.repository_links = {}
    links: dict[str, set[str]] = env.repository_links
    return links


def _purge(app: Any, env: Any, docname: str) -> None:
    _linked(env).pop(docname, None)


def _merge(app: Any, env: Any, docnames: list[str], other: Any) -> None:
    _linked(env).update({name: links for name, links in _linked(other).items() if name in docnames})


def _collect(app: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    root = Path(app.srcdir).parent
    linked = {path for paths in _linked(app.env).values() for path in paths}
    files = {path for path in linked if (root / path).is_file()}
    folders = linked - files
    for folder in folders:
        files |= {f"{folder}/{path.name}" for path in _listed(root / folder) if path.is_file()}
    pages = files | folders
    for path in sorted(files):
        yield _page(path, _file_body(root, path, pages))
    for path in sorted(folders):
        yield _page(path, _folder_body(root, path, pages))


def _page(path: str, body: str) -> tuple[str, dict[str, Any], str]:
    return page_of(path), {"title": path, "body": body, "parents": []}, "page.html"


def _listed(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.iterdir())
        if path.name not in _SKIPPED and (path.is_dir() or path.suffix in _FOLDER_FILES)
    ]


def _file_body(root: Path, path: str, pages: set[str]) -> str:
    text = (root / path).read_text(encoding="utf-8", errors="replace")
    if path.endswith(".md"):
        return _rendered(text, root=root, path=path, pages=pages)
    try:
        lexer = get_lexer_for_filename(path)
    except ClassNotFound:
        lexer = TextLexer()
    return f"<h1>{html.escape(path)}</h1>\n{highlight(text, lexer, HtmlFormatter(cssclass='highlight'))}"


def _rendered(text: str, *, root: Path, path: str, pages: set[str]) -> str:
    """Return a Markdown file as HTML, with links to pages of the site; other relative links become plain text."""
    markdown = MarkdownIt("commonmark").enable("table")
    tokens = markdown.parse(text)
    for token in (inner for outer in tokens for inner in outer.children or ()):
        target = str(token.attrs.get("href", ""))
        if token.type != "link_open" or _URL.match(target):
            continue
        name, _, anchor = target.partition("#")
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
        if linked.startswith("docs/") and linked.endswith(".md"):
            page = linked.removeprefix("docs/").removesuffix(".md")
        elif linked in pages:
            page = page_of(linked)
        else:
            token.attrs = {"title": linked}
            continue
        token.attrs["href"] = relative_uri(page_of(path), page) + (f"#{anchor}" if anchor else "")
    return str(markdown.renderer.render(tokens, markdown.options, {}))


def _folder_body(root: Path, path: str, pages: set[str]) -> str:
    rows = []
    for entry in _listed(root / path):
        name = f"{path}/{entry.name}"
        shown = html.escape(entry.name + ("/" if entry.is_dir() else ""))
        link = f'<a href="{relative_uri(page_of(path), page_of(name))}">{shown}</a>' if name in pages else shown
        rows.append(f"<li>{link}</li>")
    return f"<h1>{html.escape(path)}/</h1>\n<ul>\n" + "\n".join(rows) + "\n</ul>"
