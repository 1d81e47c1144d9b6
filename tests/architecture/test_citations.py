"""Citations of the format specification name ids of its index, and no text refers to a document that is absent."""

from __future__ import annotations

import re

from tests.architecture.sources import ROOT, tracked_files

INDEX = ROOT / "docs" / "specification" / "index.md"
ID = re.compile(r"\b(?:TL|DATA|MDT)-\d+(?:\.\d+)?\b")
PAGE = re.compile(r"\b[A-Za-z][\w/-]*\.md\b")
#: Pages of other projects, and names that tests make up.
OTHERS = ("x.md", "a.md", "b.md", "c.md", "page.md", "lost.md", "no-such-page.md")


def ids_of(text: str) -> list[str]:
    """Return the ids of the specification that `text` cites."""
    return ID.findall(text)


def known_ids() -> list[str]:
    """Return the ids that the index defines, in its order."""
    return [
        line.split("|")[1].strip() for line in INDEX.read_text(encoding="utf-8").splitlines() if ID.search(line[:12])
    ]


def texts() -> dict[str, str]:
    """Return the text of the project's Python and Markdown files by path."""
    paths = [path for path in tracked_files() if path.endswith((".py", ".md"))]
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in paths}


def test_specification_index_defines_each_id_once() -> None:
    ids = known_ids()
    assert len(ids) > 50
    assert len(ids) == len(set(ids))


def test_each_id_of_the_index_is_the_heading_of_one_section_with_text() -> None:
    sections = [
        (ids_of(heading)[0], body.strip())
        for chapter in sorted(INDEX.parent.glob("*.md"))
        for heading, body in re.findall(r"^#{2,3} ([A-Z]+-\d.*)\n((?:(?!^#).*\n?)*)", chapter.read_text("utf-8"), re.M)
    ]
    assert sorted(cite for cite, _ in sections) == sorted(known_ids())
    # A section whose text is in its subsections may have none of its own.
    parents = {cite.rpartition(".")[0] for cite in known_ids() if "." in cite}
    assert [cite for cite, body in sections if not body and cite not in parents] == []


def test_every_cited_id_is_in_the_index() -> None:
    known = set(known_ids())
    cited = {(path, cite) for path, text in texts().items() if path != __file__ for cite in ids_of(text)}
    assert cited
    assert sorted((path, cite) for path, cite in cited if cite not in known and "test_citations" not in path) == []


def test_no_python_text_refers_to_a_page_that_does_not_exist() -> None:
    pages = {path for path in tracked_files() if path.endswith(".md")}
    names = {path.rpartition("/")[2] for path in pages}
    found = [
        (path, page)
        for path, text in texts().items()
        if path.endswith(".py")
        for page in PAGE.findall(text)
        if page.rpartition("/")[2] not in (*names, *OTHERS)
    ]
    assert found == []


def test_an_unknown_id_is_found() -> None:
    assert ids_of("see (TL-99.9) and DATA-4") == ["TL-99.9", "DATA-4"]
    assert "TL-99.9" not in known_ids()
