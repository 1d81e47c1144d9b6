"""Code blocks of pages that need neither Spark nor Airflow run; no block is skipped without a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.doc_blocks import ROOT, SUITES, Page, PageRun, pages, read_page


@pytest.mark.parametrize("page", [page for page in pages("core") if page.runnable], ids=lambda page: page.path)
def test_code_blocks_of_a_page_run_in_order(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = PageRun(tmp_path, monkeypatch)
    run.run(page)
    assert set(run.executed) >= page.runnable


def test_every_page_with_code_is_run_by_a_suite_that_exists() -> None:
    for page in pages():
        if page.suite in SUITES:
            continue
        module = ROOT / page.suite
        assert page.suite.startswith("tests/") and module.is_file(), f"{page.path}: there is no {page.suite}"
        assert page.path.removeprefix("docs/") in module.read_text(encoding="utf-8"), f"{page.suite}: {page.path}"


def test_only_marked_blocks_are_skipped() -> None:
    page = read_page(
        "x.md",
        "a\n\n<!-- not run: it needs a cluster -->\n```sh\nspark-submit x\n```\n\n```python\nprint(1)\n```\n"
        "<!-- setup: python\ny = 1\n-->\n<!-- output -->\n```text\n1\n```\n",
    )
    assert [(block.language, block.not_run, block.is_output, block.line) for block in page.blocks] == [
        ("sh", "it needs a cluster", False, 5),
        ("python", None, False, 9),
        ("python", None, False, 12),
        ("text", None, True, 16),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "<!-- not run: a reason -->\nText.\n\n```sh\nls\n```\n",
        "<!-- not run: a reason -->\n",
        "<!-- not run: -->\n```sh\nls\n```\n",
    ],
    ids=["text-between", "no-block", "no-reason"],
)
def test_a_skip_without_block_or_reason_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"comment|reason"):
        read_page("x.md", text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```python\nassert False, 'wrong'\n```\n", "wrong"),
        ("```sh\nfalse\ntrue\n```\n", "exit code 1"),
        ("```yaml\ntabel: orders\n```\n", "tabel"),
        ("```sql\nSELECT 1\n```\n", "not run: REASON"),
        ("```python\nprint(1)\n```\n<!-- output -->\n```text\n2\n```\n", "the page shows"),
        ("```json\n{a}\n```\n", "Expecting property name"),
    ],
    ids=["python", "sh", "yaml", "language", "output", "json"],
)
def test_a_block_that_fails_fails_the_page(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Exception, match=problem):
        PageRun(tmp_path, monkeypatch).run(read_page("x.md", text))


def test_blocks_share_names_files_variables_and_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "```python\n# modules/numbers_of_page.py\nSEVEN = 7\n```\n"
        "```sh\nexport NUMBER=4\nmkdir -p /tmp/made\necho text > /tmp/made/file\ncd modules\n```\n"
        "```python\nimport os\nimport pathlib\nfrom modules.numbers_of_page import SEVEN\n"
        "print(SEVEN, os.environ['NUMBER'], pathlib.Path('/tmp/made/file').read_text(), pathlib.Path.cwd().name)\n```\n"
        "<!-- output -->\n```text\n7 4 text\n modules\n```\n"
    )
    page = read_page("x.md", text)
    run = PageRun(tmp_path, monkeypatch)
    run.run(page)
    assert len(run.executed) == 3
