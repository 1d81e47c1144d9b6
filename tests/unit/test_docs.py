"""README and docs: links resolve, the options table is the generated one, examples run."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Iterator
from os.path import normpath
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.spec.table.table_spec import parse_spec

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts),
)
#: A decision has fixed sections instead of a first sentence, and so has the changelog.
WITHOUT_A_PURPOSE = re.compile(r"CHANGELOG|docs/decisions/\d")
README_LINES = 150
_ABOUT_THE_READER = re.compile(r"After (reading )?th(is|ese) pages?\b")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def page_text(page: str) -> str:
    """Return the text of a page by its path below the root."""
    return (ROOT / page).read_text(encoding="utf-8")


def code_blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of one language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", page_text(page), re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the anchors that the headings of a Markdown text define."""
    headings = re.findall(r"^#+ (.+)$", _CODE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: str, text: str) -> Iterator[str]:
    """Yield the relative links of a page whose file or heading does not exist."""
    for link in _LINK.findall(_CODE.sub("", text)):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            yield f"{page}: {link}"


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_of_a_page_resolve(page: str) -> None:
    assert list(broken_links(page, page_text(page))) == []


def test_broken_links_are_found() -> None:
    text = "[a](no/such/page) [b](docs/concepts/records.md#no-such-heading) [c](docs/concepts/records.md#record-keys) [d](https://x.y)"
    assert list(broken_links("README.md", text)) == [
        "README.md: no/such/page",
        "README.md: docs/concepts/records.md#no-such-heading",
    ]


def first_paragraph(text: str) -> str:
    """Return the text between the title of a page and its first blank line, heading, list, table or code block."""
    body = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).lstrip()
    lines = body.split("\n", 1)[1].lstrip("\n").splitlines() if body.startswith("# ") else []
    prose = itertools.takewhile(lambda line: line and not line.startswith(("#", "|", "```", "- ", "* ")), lines)
    return " ".join(prose)


@pytest.mark.parametrize("page", [page for page in PAGES if not WITHOUT_A_PURPOSE.match(page)])
def test_first_sentence_of_a_page_tells_its_purpose(page: str) -> None:
    start = first_paragraph(page_text(page))
    assert start, f"{page} has no sentence after its title"
    assert not _ABOUT_THE_READER.match(start), f"{page} begins with its reader, not its purpose: {start}"


def test_first_sentences_about_the_reader_are_found() -> None:
    for sentence in ("After reading this page you can load files.", "After this page you can.", "After these pages"):
        assert _ABOUT_THE_READER.match(first_paragraph(f"<!-- x -->\n# Title\n\n{sentence}\n"))
    assert first_paragraph("# Title\n\n| a | b |\n") == ""


def test_readme_is_short_and_every_page_is_reached_by_links_from_it() -> None:
    assert len(page_text("README.md").splitlines()) <= README_LINES
    reached, waiting = set[str](), ["README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page not in PAGES:
            continue
        reached.add(page)
        for link in _LINK.findall(_CODE.sub("", page_text(page))):
            waiting.append(normpath(Path(page).parent / link.partition("#")[0]))
    assert sorted(set(PAGES) - reached) == []


def test_readme_tour_runs_and_prints_the_described_results(tmp_path: Path) -> None:
    code = code_blocks("README.md", "python")[0].replace("/tmp/tour", str(tmp_path))
    assert "print(" in code
    printed: list[object] = []
    exec(compile(code, "README.md", "exec"), {"print": printed.append})
    rows = printed[0]
    assert isinstance(rows, dict)
    assert dict(zip(rows["order_id"], rows["fare"], strict=True)) == {"a": 11.0, "b": 20.0, "c": 30.0, "d": 40.0}
    assert printed[1] == 3
    assert isinstance(printed[2], pa.Table)
    assert sorted(printed[2].column("order_id").to_pylist()) == ["a", "d"]
    assert printed[3:] == [1, ("2026-01-01",)]
    shutil.rmtree(tmp_path / "orders")


def test_example_spec_of_the_ingestion_page_parses() -> None:
    spec = parse_spec(code_blocks("docs/ingestion.md", "yaml")[0], source="ingestion.md")
    assert spec.table == "ride_trips"
    assert spec.ingest is not None
    assert spec.ingest.is_by_interval
