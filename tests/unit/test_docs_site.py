"""The site of the documentation: the build reports broken links and lost pages, and links to source files work."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.site.toctrees import index_of, toctrees

ROOT = Path(__file__).parents[2]


def build(repository: Path, pages: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Build a site of `pages` with the project's configuration; the repository has one source file."""
    (repository / "code").mkdir()
    (repository / "code" / "module.py").write_text("ANSWER = 42\n", encoding="utf-8")
    (repository / "README.md").write_text("# Title\n\n[index](docs/index.md)\n", encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "site", repository / "docs" / "site", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs" / "_static", repository / "docs" / "_static")
    shutil.copy(ROOT / "docs" / "conf.py", repository / "docs")
    for name, text in pages.items():
        page = repository / "docs" / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", "built"]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)


def test_site_shows_linked_source_files_and_rendered_markdown(tmp_path: Path) -> None:
    result = build(
        tmp_path,
        {
            "index.md": "# Index\n\n- [Page](part/page.md)\n",
            "part/page.md": "# Page\n\n[file](../../code/module.py) [folder](../../code) [readme](../../README.md)\n",
        },
    )
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "built" / "part" / "page.html").read_text(encoding="utf-8")
    assert 'href="../repository/code/module.py.html"' in page
    assert 'href="../repository/code.html"' in page
    source = (tmp_path / "built" / "repository" / "code" / "module.py.html").read_text(encoding="utf-8")
    assert "ANSWER" in source
    assert "module.py.html" in (tmp_path / "built" / "repository" / "code.html").read_text(encoding="utf-8")
    readme = (tmp_path / "built" / "repository" / "README.md.html").read_text(encoding="utf-8")
    assert '<a href="../index.html">index</a>' in readme


@pytest.mark.parametrize(
    ("pages", "problem"),
    [
        ({"index.md": "# Index\n\n[a](no-such-page.md)\n"}, "no-such-page.md"),
        ({"index.md": "# Index\n\n[a](../code/no_such_module.py)\n"}, "no_such_module.py"),
        ({"index.md": "# Index\n\n[a](#no-such-heading)\n"}, "no-such-heading"),
        ({"index.md": "# Index\n", "lost.md": "# Lost\n"}, "lost.md"),
    ],
    ids=["page", "source", "heading", "page-without-link"],
)
def test_site_build_fails_for_a_broken_link_and_a_page_without_link(
    tmp_path: Path, pages: dict[str, str], problem: str
) -> None:
    result = build(tmp_path, pages)
    assert result.returncode != 0
    assert problem in result.stderr


def test_toctrees_list_the_linked_pages_of_an_index_by_heading(tmp_path: Path) -> None:
    for name in ("index", "a", "part/index", "part/b", "loose/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.md").write_text("# x\n", encoding="utf-8")
    text = "# Top\n## One\n[a](a.md) [b](part/b.md) [again](a.md#x)\n## Two\n| [p](part/index.md) | [c](loose/c.md) |\n"
    made = toctrees(text, docname="index", docs=tmp_path)
    assert [line for line in made.splitlines() if line.startswith((":caption", "/"))] == [
        ":caption: One",
        "/a",
        ":caption: Two",
        "/part/index",
        "/loose/c",
    ]
    assert index_of("part/b", docs=tmp_path) == "part/index"
